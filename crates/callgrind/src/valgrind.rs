//! Counts instructions with callgrind.

use std::{env, process::Command};

use anyhow::{Context, ensure};

/// Returns why nothing can be counted here.
pub(crate) fn missing() -> Option<&'static str> {
    Command::new("valgrind").arg("--version").output().is_err().then_some("valgrind is not installed")
}

/// Returns the environment on which counts depend, apart from the source: the compiler, and the
/// processor's instruction sets, which codecs and the C library detect at run time. Valgrind
/// supports AVX2 at most.
pub(crate) fn made_with() -> String {
    let rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output();
    let rustc = rustc.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |out| String::from_utf8_lossy(&out.stdout).trim().to_owned(),
    );
    let text = format!("{rustc}, {}", env::consts::ARCH);
    #[cfg(target_arch = "x86_64")]
    let text = [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
    ]
    .into_iter()
    .filter(|(_, present)| *present)
    .fold(text, |text, (name, _)| text + " " + name);
    text
}

/// Runs this program with `--work TABLE OPERATION CODEC` under callgrind, which counts only inside
/// `function`, a name that may have wildcards.
pub(crate) fn counted(function: &str, table: &str, operation: &str, codec: &str) -> anyhow::Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg(format!("--toggle-collect={function}"))
        .arg(env::current_exe()?)
        .args(["--work", table, operation, codec])
        .output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{log}");
    log.lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, count)| count.trim().parse().ok())
        .with_context(|| format!("callgrind counted nothing: {log}"))
}
