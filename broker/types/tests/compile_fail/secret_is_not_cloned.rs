use wallgate_types::secret::Secret;

fn main() {
    let secret = Secret::new(String::from("value"));
    let _copy = secret.clone();
}
