//! Serves a disk, forks it, writes to the fork, and saves the fork as an image.

use std::{error::Error, time::Duration};

use pagefold_disk::BlockDevice;
use pagefold_erofs::BuildOptions;
use pagefold_output::{Destination, ImageFormat, Inputs};
use pagefold_serve::Client;
use pagefold_server::{Add, Config, Fork, Manage, Server, Sockets};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let (socket, image) = (folder.path().join("nbd.sock"), folder.path().join("job-1.erofs"));
    let server = Server::new(Config::default())?;
    server.add(&Add::new("golden", 64 << 20))?;
    let running = server.listen(Sockets::new().unix(&socket))?.start()?;

    server.device("golden")?.write(4096, b"before the fork")?;
    server.fork(&Fork::new("golden", ["job-1"]))?;
    server.device("job-1")?.write(0, b"in the fork")?;

    let mut client = Client::unix(&socket, "job-1", Duration::from_secs(10))?;
    let mut bytes = [0; 11];
    client.read(0, &mut bytes)?;
    assert_eq!(&bytes, b"in the fork");

    let destination = Destination::of(&image, ImageFormat::Erofs, false, &Inputs::default())?;
    let draft = destination.make_draft()?;
    server.frozen("job-1")?.write_erofs(draft.file(), &BuildOptions::default(), None, &mut |_, _| {})?;
    destination.take(draft)?;
    drop(running); // completes requests in flight and removes the socket
    Ok(())
}
