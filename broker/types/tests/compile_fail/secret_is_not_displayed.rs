use wallgate_types::secret::Secret;

fn main() {
    let secret = Secret::new(String::from("value"));
    println!("{secret}");
}
