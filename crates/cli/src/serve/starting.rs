//! Creates a server with its disks, bases and forks.

use pagefold_disk::NewPoolError;
use pagefold_server::{BaseFile, Code, Config, Manage, Server};

use super::{args::Args, config::AtStart};
use crate::report::misuse;

/// Creates the server with its disks.
pub(super) fn new_server(args: &Args, at_start: &AtStart, config: Config) -> anyhow::Result<Server> {
    let server = Server::new(config).map_err(|error| match error {
        error @ NewPoolError::LimitTooSmall { .. } => misuse(error),
        error => error.into(),
    })?;
    args.disks().iter().try_for_each(|disk| server.add(disk).map(drop)).map_err(misuse)?;
    at_start.add_disks(&server, args.read_only)?;
    Ok(server)
}

/// Serves the files, and creates forks of them.
pub(super) fn serve_files(server: &Server, files: &[BaseFile], at_start: &AtStart) -> anyhow::Result<()> {
    for file in files {
        server.serve_file(file).map_err(|failure| match failure.code {
            Code::NameInUse => misuse(failure),
            _ => failure.into(),
        })?;
    }
    at_start.add_bases_and_forks(server)
}
