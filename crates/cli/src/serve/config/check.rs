//! `pagefold serve --check-config`: prints what would be served.

use std::io::Write;

use pagefold_control::{Batch, DiskKind, DiskRecord};
use pagefold_server::{Manage, MemoryLimit, default_limit_bytes};

use super::{
    super::{
        args::Args,
        options::MetricsArg,
        starting::{new_server, serve_files},
    },
    AtStart,
};
use crate::{
    log::{Level, Log},
    output::output,
    size,
    text::plain,
};

/// Opens everything that the server would open except its sockets, and prints it.
pub(in super::super) fn check(args: &Args, at_start: &AtStart) -> anyhow::Result<()> {
    let log = Log::new(Level::Warn);
    args.tls.certificates(log)?;
    let at_start = at_start.without_sockets();
    let files = args.files()?;
    let server = new_server(args, &at_start, args.config(log, args.remote.clone()))?;
    serve_files(&server, &files, &at_start)?;

    let mut out = output();
    let mut say = |what: &str, value: &str| writeln!(out, "{what:<13} {}", plain(value));
    if let Some(path) = &args.config {
        say("configuration", &path.display().to_string())?;
    }
    let dir = args.dir.as_ref().map(|path| path.display().to_string());
    say("directory", &dir.unwrap_or_else(|| "the user's, unless the service manager passes sockets".to_owned()))?;
    args.unix.iter().try_for_each(|path| say("unix", &path.display().to_string()))?;
    args.tcp.iter().try_for_each(|address| say("tcp", &address.to_string()))?;
    args.vsock.iter().try_for_each(|vsock| say("vsock", &vsock.port.to_string()))?;
    args.vhost_user.iter().try_for_each(|path| say("vhost-user", &path.display().to_string()))?;
    args.files_in.iter().try_for_each(|path| say("files", &path.display().to_string()))?;
    args.metrics.iter().try_for_each(|metrics| match metrics {
        MetricsArg::Unix(path) => say("metrics", &path.display().to_string()),
        MetricsArg::Tcp(address) => say("metrics", &address.to_string()),
    })?;
    let limit = match args.memory_limit {
        None | Some(MemoryLimit::Half) => {
            let half = "half of the memory of the machine, of the control group or of the address space";
            default_limit_bytes().map_or_else(|| half.to_owned(), |bytes| format!("{}, {half}", size::show(bytes)))
        }
        Some(MemoryLimit::Bytes(bytes)) => size::written(bytes),
        Some(MemoryLimit::None) => "none".to_owned(),
    };
    say("memory limit", &limit)?;
    say("codec", &args.codec.name())?;
    for disk in server.list(Batch { after: None, most: usize::MAX }) {
        say(kind(&disk), &words(&disk))?;
    }
    Ok(out.flush()?)
}

fn kind(disk: &DiskRecord) -> &'static str {
    match (disk.kind, &disk.from) {
        (DiskKind::Base, _) => "base",
        (_, Some(_)) => "fork",
        _ => "disk",
    }
}

fn words(disk: &DiskRecord) -> String {
    let mut words = format!("'{}', {}", disk.name, size::written(disk.size_bytes));
    if disk.read_only {
        words += ", read-only";
    }
    if let Some(from) = &disk.from {
        words += &format!(", of '{from}'");
    }
    if let Some(path) = &disk.path {
        words += &format!(", {path}");
    }
    if let Some(limit) = disk.limit_bytes {
        words += &format!(", limit {}", size::written(limit));
    }
    words
}
