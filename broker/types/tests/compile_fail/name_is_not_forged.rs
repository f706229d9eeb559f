use wallgate_types::authority::{Authority, Host, Name};

fn main() {
    let name = Name("Not Canonical".into());
    let _authority = Authority { host: Host::Name(name), port: 0 };
}
