//! What must not compile: a secret that is copied, shown or serialised (P6), and addresses that are swapped (P2).

#[test]
fn secrets_and_addresses_cannot_be_misused() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
