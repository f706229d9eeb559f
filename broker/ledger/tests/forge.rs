//! P5: nothing but the ledger makes a `Recorded`. Each file in `forge/` tries, and must not compile.

#[test]
fn recorded_cannot_be_forged() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/forge/*.rs");
}
