//! pypiserver, with uploads switched on, so that an upload that does not arrive was stopped by the wall.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::Upstream;
use super::front::Front;
use crate::process::{Server, free_port, succeed};
use crate::room::Room;
use crate::tools;

/// Who may upload.
pub const USER: &str = "uploader";
/// And with what.
pub const PASSWORD: &str = "correct-horse";

/// A server of Python packages.
#[derive(Debug)]
pub struct Pypi {
    /// The server.
    pub upstream: Upstream,
    packages: PathBuf,
}

/// Writes a wheel that holds one module.
const MAKE_WHEEL: &str = r#"
import sys, zipfile
directory, name, version, content = sys.argv[1:]
info = f"{name}-{version}.dist-info"
files = {
    f"{name}.py": content,
    f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
record = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
with zipfile.ZipFile(f"{directory}/{name}-{version}-py3-none-any.whl", "w") as wheel:
    for path, text in files.items():
        wheel.writestr(path, text)
    wheel.writestr(f"{info}/RECORD", record)
"#;

impl Pypi {
    /// Serves packages as `https://HOST/simple/`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn start(room: &Room, host: &str) -> Result<Self> {
        let directory = room.new_directory("pypi")?;
        let packages = directory.join("packages");
        fs::create_dir(&packages).context("no directory for packages")?;
        let passwords = directory.join("passwords");
        fs::write(&passwords, format!("{USER}:{}\n", apache_sha1(PASSWORD)?))
            .context("cannot write the passwords")?;
        let address = free_port()?;
        let server = Server::start(
            "pypiserver",
            Command::new(tools::python("pypi-server")?)
                .args([
                    "run",
                    "--interface",
                    "127.0.0.1",
                    "--port",
                    &address.port().to_string(),
                ])
                .args(["--authenticate", "update", "--disable-fallback", "--passwords"])
                .arg(&passwords)
                .arg(&packages),
            address,
            &directory,
        )?;
        room.keep(server);
        Ok(Self {
            upstream: Upstream::https(room, host, Front::of(address))?,
            packages,
        })
    }

    /// Adds a wheel that holds one module.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn add(&self, name: &str, version: &str, content: &str) -> Result<()> {
        wheel(&self.packages, name, version, content).map(drop)
    }

    /// The files that it serves, by name.
    ///
    /// # Errors
    ///
    /// When the directory cannot be read.
    pub fn files(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.packages).context("no packages")? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

/// Writes a wheel of one module into `directory`, and returns where.
///
/// # Errors
///
/// When it cannot be written.
pub fn wheel(directory: &std::path::Path, name: &str, version: &str, content: &str) -> Result<PathBuf> {
    succeed(
        Command::new("/usr/bin/python3")
            .args(["-c", MAKE_WHEEL])
            .arg(directory)
            .args([name, version, content]),
    )?;
    Ok(directory.join(format!("{name}-{version}-py3-none-any.whl")))
}

/// The `{SHA}` form of `htpasswd`.
fn apache_sha1(password: &str) -> Result<String> {
    let script = "import base64, hashlib, sys; \
                  print('{SHA}' + base64.b64encode(hashlib.sha1(sys.argv[1].encode()).digest()).decode())";
    Ok(
        succeed(Command::new("/usr/bin/python3").args(["-c", script, password]))?
            .trim()
            .to_owned(),
    )
}
