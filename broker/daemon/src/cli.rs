//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use wallgate_types::sandbox::SandboxId;

use crate::config::DEFAULT_CONFIG;
use crate::exit::Failure;
use crate::{broker, detect, doctor, ledger_commands, policy_commands, supervisor, trust_kit};

const EXIT_CODES: &str = "\
Exit codes:
  0    done, or CMD's own exit code for `run` (128 + N when signal N ended it)
  1    a check did not hold: a ledger that does not verify, a policy test that fails
  64   the command line, the configuration or the policy bundle is wrong
  69   this host or this user cannot do it; `wallgate doctor` says what is missing
  70   wallgate itself failed; the sandbox was ended
  73   the state directory or the ledger cannot be used, is locked, or is from another version
  77   a secret cannot be read
  126  CMD cannot be executed
  127  CMD was not found

Files:
  /etc/wallgate/wallgate.toml   the configuration, unless --config names another
  /var/lib/wallgate             the state directory, unless `state_dir` or --state says otherwise";

/// The network wall of an AI-agent sandbox: the one door through which its traffic leaves, and the one place where its
/// credentials live.
///
/// Every request, name lookup and connection of a sandbox is decided by a policy, recorded in a ledger that proves
/// itself, and only then sent, with credentials that the sandbox never sees.
#[derive(Debug, Parser)]
#[command(name = "wallgate", version, after_long_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(RunArguments),
    /// Read and check the record of what sandboxes did.
    #[command(subcommand)]
    Ledger(ledger_commands::LedgerCommand),
    /// Check, test and try a policy bundle.
    #[command(subcommand)]
    Policy(policy_commands::PolicyCommand),
    TrustKit(trust_kit::TrustKitArguments),
    /// Say what this host has and lacks for wallgate, and the remedy.
    ///
    /// Changes nothing. Exit code 0 when `wallgate run` can work here, 69 when it cannot.
    Doctor(doctor::DoctorArguments),
    /// Describe the package hosts that this host's clients use.
    #[command(subcommand)]
    Service(detect::ServiceCommand),
    /// Print a completion script for a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// The process that parses hostile bytes; started by the others, over an inherited channel.
    #[command(hide = true)]
    Broker,
}

/// Run a command in a throw-away sandbox behind the wall.
///
/// CMD is root in its own user, pid, mount, network, ipc and uts namespaces and nobody outside. It sees the host's
/// programs (read-only), the current directory, files that its command line names by absolute path, and an empty home;
/// no process, socket or other file of the host. Its network is the wall: every name and connection is answered by the
/// broker or dropped. The system's certificate bundle inside trusts the broker, and the usual variables say so to
/// clients that have a bundle of their own.
///
/// The exit code is CMD's. SIGINT, SIGTERM and SIGHUP are passed on; after `run.grace_ms` what is left is killed. The
/// ledger stays in the state directory.
#[derive(Debug, Args)]
#[command(after_long_help = EXIT_CODES)]
pub struct RunArguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// The sandbox's name, as policy and the ledger call it; `run-` and eight random digits unless given.
    #[arg(long, value_name = "ID")]
    pub sandbox: Option<SandboxId>,
    /// A label that policy sees; may be repeated.
    #[arg(long = "label", value_name = "K=V", value_parser = key_value)]
    pub labels: Vec<(String, String)>,
    /// The state directory, instead of the configuration's.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Let CMD change this path, as far as file permissions let nobody; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub bind: Vec<PathBuf>,
    /// Let CMD read this path; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub ro_bind: Vec<PathBuf>,
    /// Set a variable for CMD, or take it from here when there is no value; may be repeated.
    #[arg(long, value_name = "K[=V]")]
    pub env: Vec<String>,
    /// Print no summary at the end.
    #[arg(long, short)]
    pub quiet: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is written K=V".to_owned()),
    }
}

/// Does what the command line says.
///
/// # Errors
/// What went wrong, in one sentence, with its exit code.
pub fn dispatch(cli: Cli) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Run(arguments) => supervisor::run(arguments),
        Command::Ledger(command) => ledger_commands::run(command),
        Command::Policy(command) => policy_commands::run(command),
        Command::TrustKit(arguments) => trust_kit::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Service(command) => detect::run(&command),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "wallgate", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
        Command::Broker => broker::main(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_command_belongs_to_it() {
        let cli = Cli::try_parse_from([
            "wallgate", "run", "--config", "c", "--label", "team=x", "--", "curl", "--quiet",
        ]);
        let Command::Run(arguments) = cli.unwrap().command else {
            panic!("not a run")
        };
        assert_eq!(arguments.command, ["curl", "--quiet"]);
        assert!(!arguments.quiet);
        assert_eq!(arguments.labels, [("team".to_owned(), "x".to_owned())]);
    }
}
