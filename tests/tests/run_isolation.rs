//! What a command in `wallgate run` can see and touch: itself, and nothing of the host.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use wallgate_tests::room::{Room, room};
use wallgate_tests::rss;
use wallgate_tests::wallgate::binary;

/// A value that must not be found inside.
const CANARY: &str = "canary-5d1f0a7c";

fn output_of(room: &Room, script: &str) -> Result<String> {
    Ok(room.wallgate()?.sh(script)?.succeeded()?.stdout)
}

#[test]
fn sees_only_its_own_processes() {
    room(|room| {
        let seen = output_of(
            room,
            "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done",
        )?;
        for line in seen.lines().filter(|line| !line.trim().is_empty()) {
            let own = ["/usr/bin/bwrap --args", "/bin/sh -c", "tr "];
            ensure!(
                own.iter().any(|own| line.starts_with(own)),
                "a foreign process: {line}"
            );
        }
        ensure!(
            !seen.contains("wallgate.toml"),
            "the command line of the sandbox tells of the host: {seen}"
        );
        Ok(())
    });
}

#[test]
fn is_root_inside_and_nobody_outside_without_any_capability() {
    room(|room| {
        let mut running = room.wallgate()?.start(&[
            "/bin/sh",
            "-c",
            "id -u; cat /proc/self/uid_map /proc/self/gid_map; grep ^Cap /proc/self/status; echo ready; read wait",
        ])?;
        running.wait_for_line(|line| line == "ready")?;
        for (pid, command) in rss::descendants(running.pid())? {
            if command.starts_with("/bin/sh") {
                let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
                ensure!(
                    status.contains("Uid:\t65534\t65534\t65534\t65534"),
                    "outside it is {status}"
                );
                ensure!(
                    status.contains("Groups:\t \n") || status.contains("Groups:\t\n"),
                    "it has groups: {status}"
                );
            }
        }
        let finished = running.finish()?;
        let expected = "         0      65534          1";
        ensure!(
            finished.stdout.starts_with("0\n"),
            "not root inside: {}",
            finished.stdout
        );
        ensure!(
            finished.stdout.matches(expected).count() == 2,
            "{}",
            finished.stdout
        );
        ensure!(
            finished.stdout.matches("0000000000000000").count() == 5,
            "it has capabilities: {}",
            finished.stdout
        );
        Ok(())
    });
}

#[test]
fn sees_no_file_of_the_host_but_programs_and_its_own_directory() {
    room(|room| {
        let elsewhere = room.new_directory("elsewhere")?;
        fs::write(elsewhere.join("file"), CANARY)?;
        let seen = output_of(
            room,
            "ls -A / /root /home /run /var /tmp /mnt /mnt/room 2>&1; cat /etc/shadow /etc/machine-id /etc/ssh/* 2>&1; true",
        )?;
        for hidden in ["elsewhere", CANARY, "sys\n", "boot", "root:$", "dbus", "docker"] {
            ensure!(!seen.contains(hidden), "{hidden} can be seen: {seen}");
        }
        Ok(())
    });
}

#[test]
fn sees_no_state_configuration_policy_or_secret_even_in_its_own_directory() {
    room(|room| {
        let place = room.new_directory("place")?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777))?;
        fs::write(place.join("token"), CANARY)?;
        fs::write(
            place.join("wallgate.toml"),
            format!(
                "state_dir = \"state\"\n[[credential]]\nname = \"t\"\nsource = \"file:token\"\nshape = \"bearer\"\n\
             bind = {{ hosts = [\"a.test\"] }}\n# {CANARY}\n"
            ),
        )?;
        fs::create_dir(place.join("policies"))?;
        fs::write(
            place.join("policies/main.rego"),
            format!(
                "package wallgate\n# {CANARY}\ndecision := {{\"verdict\": \"deny\", \"rule\": \"x\", \"reason\": \"y\"}}\n"
            ),
        )?;
        let script = "cat token wallgate.toml policies/* state/* state/*/* 2>&1; rm -rf token wallgate.toml policies state 2>&1; \
                      mv policies p2 2>&1; umount token state 2>&1; find . -type f; true";
        let output = Command::new(binary()?)
            .args([
                "run",
                "--quiet",
                "--config",
                "wallgate.toml",
                "--",
                "/bin/sh",
                "-c",
                script,
            ])
            .current_dir(&place)
            .stdin(Stdio::null())
            .output()?;
        let seen = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "{seen}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        ensure!(!seen.contains(CANARY), "a secret can be read: {seen}");
        ensure!(
            fs::read_to_string(place.join("token"))? == CANARY,
            "the secret was changed"
        );
        ensure!(
            place.join("policies/main.rego").exists() && place.join("state/ledger").exists(),
            "{seen}"
        );
        Ok(())
    });
}

#[test]
fn its_environment_and_descriptors_are_its_own() {
    room(|room| {
        let gate = room.wallgate()?;
        let configuration = gate.write_configuration()?;
        let secret = fs::File::open("/etc/passwd")?;
        let inherited = rustix::io::dup(&secret)?;
        let script = format!(
            "exec 9</proc/self/fd/{}; exec \"$0\" run --quiet --config \"$1\" --env KEPT=yes -- /bin/sh -c 'env; ls -l /proc/$$/fd'",
            inherited.as_raw_fd()
        );
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty())?;
        // Not every shell takes a descriptor of two digits.
        let output = Command::new("/bin/bash")
            .args(["-c", &script])
            .arg(binary()?)
            .arg(configuration)
            .env("SECRET_TOKEN", CANARY)
            .env("SSH_AUTH_SOCK", CANARY)
            .env("DBUS_SESSION_BUS_ADDRESS", CANARY)
            .env("HTTPS_PROXY", CANARY)
            .env("LD_LIBRARY_PATH", CANARY)
            .current_dir(gate.work())
            .stdin(Stdio::null())
            .output()?;
        let seen = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "{seen}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        ensure!(
            !seen.contains(CANARY),
            "the host's environment can be seen: {seen}"
        );
        ensure!(
            !seen.contains("passwd"),
            "an inherited descriptor can be used: {seen}"
        );
        for wanted in [
            "KEPT=yes",
            "HOME=/root",
            "USER=root",
            "SSL_CERT_FILE=/",
            "NODE_EXTRA_CA_CERTS=/",
        ] {
            ensure!(seen.contains(wanted), "{wanted} is not there: {seen}");
        }
        Ok(())
    });
}

#[test]
fn reaches_no_socket_of_the_host() {
    room(|room| {
        let abstract_name = SocketAddr::from_abstract_name(CANARY)?;
        let _listener = UnixListener::bind_addr(&abstract_name)?;
        let _file = UnixListener::bind("/run/canary.sock")?;
        let script = format!(
            "import socket\n\
             def attempt(name, *how):\n\
             \x20 try:\n\
             \x20   s = socket.socket(*how); s.settimeout(2); s.connect(name); print('REACHED', name)\n\
             \x20 except OSError as e: print('no', e.errno)\n\
             attempt('\\0{CANARY}', socket.AF_UNIX)\n\
             attempt('/run/canary.sock', socket.AF_UNIX)\n\
             attempt('/run/dbus/system_bus_socket', socket.AF_UNIX)\n\
             attempt('/var/run/docker.sock', socket.AF_UNIX)\n\
             attempt((2, 22), 40, socket.SOCK_STREAM)\n"
        );
        let seen = room
            .wallgate()?
            .run(&["/usr/bin/python3", "-c", &script])?
            .succeeded()?
            .stdout;
        ensure!(
            !seen.contains("REACHED") && seen.matches("no ").count() == 5,
            "{seen}"
        );
        Ok(())
    });
}

#[test]
fn asks_the_kernel_for_nothing_that_goes_round_the_wall() {
    room(|room| {
        // Families: vsock, packet, alg, bluetooth. Calls (x86-64): io_uring_setup, bpf, perf_event_open, keyctl,
        // userfaultfd, add_key. The terminal: TIOCSTI. All EPERM (1).
        let script = "import socket, ctypes, fcntl, platform\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             for family in (40, 17, 38, 31):\n\
             \x20 try: socket.socket(family, socket.SOCK_RAW); print('OPEN', family)\n\
             \x20 except OSError as e: print('errno', e.errno)\n\
             calls = (425, 321, 298, 250, 323, 248) if platform.machine() == 'x86_64' else (425, 280, 241, 219, 282, 217)\n\
             for number in calls:\n\
             \x20 print('errno' if libc.syscall(number, 0, 0, 0, 0, 0) == -1 else 'OPEN', ctypes.get_errno())\n\
             try: fcntl.ioctl(0, 0x5412, b'x'); print('OPEN')\n\
             except OSError as e: print('errno', e.errno)\n";
        let seen = room
            .wallgate()?
            .run(&["/usr/bin/python3", "-c", script])?
            .succeeded()?
            .stdout;
        ensure!(
            !seen.contains("OPEN") && seen.matches("errno 1\n").count() == 11,
            "{seen}"
        );
        Ok(())
    });
}

#[test]
fn a_foreign_abi_is_killed() {
    room(|room| {
        if !cfg!(target_arch = "x86_64") {
            return Ok(());
        }
        // getpid by its x32 number.
        let script = "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39); print('ALIVE')";
        let finished = room.wallgate()?.run(&["/usr/bin/python3", "-c", script])?;
        ensure!(
            finished.status.code() == Some(128 + 31),
            "SIGSYS is 31: {:?}",
            finished.status
        );
        ensure!(!finished.stdout.contains("ALIVE"), "{}", finished.stdout);
        Ok(())
    });
}

#[test]
fn cannot_change_its_network_or_enter_another_namespace() {
    room(|room| {
        let origin = room.origin("api.corp.test")?;
        let gate = room.wallgate()?.upstream(&origin).allow("api.corp.test");
        let script = "ip link set eth0 down 2>&1 && echo CHANGED\n\
                      ip addr add 10.9.9.9/24 dev eth0 2>&1 && echo CHANGED\n\
                      ip route replace default dev lo 2>&1 && echo CHANGED\n\
                      mount -t tmpfs none /tmp 2>&1 && echo CHANGED\n\
                      nsenter --net=/proc/1/ns/net true 2>&1 && echo CHANGED\n\
                      chroot / true 2>&1 && echo CHANGED\n\
                      unshare -rn curl -s -m 3 https://api.corp.test/ && echo CHANGED\n\
                      curl -s -o /dev/null -m 20 -w '%{http_code}' https://api.corp.test/";
        let seen = gate.sh(script)?.succeeded()?.stdout;
        ensure!(!seen.contains("CHANGED"), "{seen}");
        ensure!(
            seen.ends_with("200"),
            "the network does not work any more: {seen}"
        );
        Ok(())
    });
}

#[test]
fn its_exit_code_is_the_commands() {
    room(|room| {
        let gate = room.wallgate()?;
        let rows: [(&[&str], i32); 6] = [
            (&["/bin/true"], 0),
            (&["/bin/sh", "-c", "exit 7"], 7),
            (&["/bin/sh", "-c", "kill -TERM $$"], 143),
            (&["/bin/sh", "-c", "kill -KILL $$"], 137),
            (&["/no/such/program"], 127),
            (&["/etc/passwd"], 126),
        ];
        for (command, expected) in rows {
            let finished = gate.run(command)?;
            ensure!(
                finished.status.code() == Some(expected),
                "{command:?} gave {:?}",
                finished.status
            );
        }
        Ok(())
    });
}

#[test]
fn passes_standard_input_and_output_through_and_adds_nothing() {
    room(|room| {
        let gate = room.wallgate()?;
        let configuration = gate.write_configuration()?;
        let mut child = Command::new(binary()?)
            .args(["run", "--config"])
            .arg(configuration)
            .args(["--", "cat"])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().context("no input")?;
        std::io::Write::write_all(&mut stdin, b"hello\n")?;
        drop(stdin);
        let output = child.wait_with_output()?;
        ensure!(output.stdout == b"hello\n", "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(said.contains("0 allowed, 0 denied"), "no summary: {said}");
        ensure!(
            said.contains("the command starts in /root"),
            "works from any directory: {said}"
        );
        Ok(())
    });
}
