//! P4: outside this crate nobody makes, copies or opens up the proof that policy allowed something.

#[test]
fn compile_fail_forge() {
    trybuild::TestCases::new().compile_fail("tests/forge/*.rs");
}
