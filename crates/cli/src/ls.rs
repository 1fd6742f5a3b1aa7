//! `pagefold ls`: lists names in an image.

use std::io::Write;

use anyhow::{Context, bail};
use pagefold_erofs::{FileKind, Image, Inode};

use crate::output::output;
use crate::record;
use crate::{
    image::{ImageArgs, ImagePath, long, resolve},
    text::show,
};

/// List the files of an EROFS image
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pagefold ls rootfs.erofs
  pagefold ls -lR rootfs.erofs:/etc
  pagefold ls -R --json rootfs.erofs | jq -r 'select(.mode >= \"2000\") | .path'
  pagefold ls --offset 1M firmware.bin")]
pub(crate) struct Args {
    /// The image, and a path in it
    #[arg(value_name = "IMAGE[:PATH]")]
    place: ImagePath,

    /// Show mode, links, owner, size and time (UTC)
    #[arg(short, long)]
    long: bool,

    /// List subdirectories too
    #[arg(short = 'R', long)]
    recursive: bool,

    /// Print one JSON object per line, with all metadata of a file
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    image: ImageArgs,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let image = args.image.open(&args.place.image)?;
    let inode = resolve(&image, &args.place.image, &args.place.path)?;
    let mut out = output();
    if inode.kind == FileKind::Directory {
        list(&image, &inode, args, &mut out)?;
    } else {
        let name: &[u8] = if args.json { b"" } else { &args.place.path };
        line(&image, &inode, name, args, &mut out)?;
    }
    out.flush()?;
    Ok(())
}

/// Directories with longer paths are not entered: no system call takes these paths, and a listing
/// of a chain of directories would grow with the square of its length.
const MAX_PATH_BYTES: usize = 4095;

/// Lists a directory and, if requested, those below it. Each is listed once, even if the image has
/// cycles.
fn list(image: &Image, directory: &Inode, args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let mut seen = std::collections::HashSet::from([directory.nid]);
    let mut stack = vec![(directory.clone(), Vec::new())];
    let mut deep = 0_u64;
    while let Some((directory, path)) = stack.pop() {
        let mut below = Vec::new();
        for entry in image.read_dir(&directory)? {
            let mut name: Vec<u8> = path.clone();
            name.extend_from_slice(&entry.name);
            if args.long || args.recursive || args.json {
                let inode = image.inode(entry.nid)?;
                line(image, &inode, &name, args, out)?;
                if args.recursive && inode.kind == FileKind::Directory && seen.insert(inode.nid) {
                    if name.len() > MAX_PATH_BYTES {
                        deep += 1;
                        continue;
                    }
                    name.push(b'/');
                    below.push((inode, name));
                }
            } else {
                writeln!(out, "{}", show(&name))?;
            }
        }
        stack.extend(below.into_iter().rev());
    }
    if deep > 0 {
        out.flush()?;
        let directories = if deep == 1 { "directory" } else { "directories" };
        bail!(
            "{deep} {directories} with a path longer than {MAX_PATH_BYTES} bytes not entered; IMAGE:PATH lists what is \
             below PATH"
        );
    }
    Ok(())
}

fn line(image: &Image, inode: &Inode, name: &[u8], args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    if args.json {
        let path = record::path(&args.place.path, name);
        record::file(image, inode, &path).with_context(|| show(&path))?.write(out)?;
        return Ok(());
    }
    if !args.long {
        writeln!(out, "{}", show(name))?;
        return Ok(());
    }
    write!(out, "{} {}", long(inode), show(name))?;
    if inode.kind == FileKind::Symlink {
        write!(out, " -> {}", show(&image.read_link(inode)?))?;
    }
    writeln!(out)?;
    Ok(())
}
