//! P5, P6: nothing but `arm` makes an `Armed`, and it takes nothing but what was allowed and recorded. Each file in
//! `forge/` tries, and must not compile.

#[test]
fn armed_cannot_be_forged_and_no_stage_skipped() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/forge/*.rs");
}
