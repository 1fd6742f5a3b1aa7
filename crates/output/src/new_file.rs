//! A file that gets its name only once it is complete.

use std::{
    fs::{self, File, Metadata},
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        CWD, Gid, IFlags, Mode, OFlags, RenameFlags, Uid, XattrFlags, fchmod, fchown, fsetxattr, getxattr,
        ioctl_getflags, renameat_with,
    },
    io::Errno,
};
use tempfile::TempPath;

use crate::{
    Draft, Error, Guard, Inputs, Result, Written,
    draft::{Linked, UNGUARDED},
    error::{During, ensure, refuse},
    inputs::FileId,
};

/// Returns whether the names in a directory only grow in number (`chattr +a`).
fn is_append_only(directory: &Path) -> bool {
    let flags = File::open(directory).map(ioctl_getflags);
    matches!(flags, Ok(Ok(flags)) if flags.contains(IFlags::APPEND))
}

/// The number of symbolic links in a row above which they count as a loop, as in Linux.
const MOST_LINKS: u32 = 40;

/// The longest access control list that is kept. File systems bound it similarly.
const MOST_ACL_BYTES: usize = 4096;

/// A regular file that a program writes.
#[derive(Debug)]
pub struct NewFile {
    /// The path, without symbolic links.
    path: PathBuf,
    written: Written,
    /// Whether to replace a file of another kind.
    force: bool,
    /// The file that has the name and may be replaced.
    replaced: Option<Replaced>,
}

#[derive(Debug)]
struct Replaced {
    id: FileId,
    /// While the file is open, no other file gets its inode number.
    open: OwnedFd,
}

impl Replaced {
    fn at(path: &Path) -> io::Result<Self> {
        let open = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let file = File::from(open);
        Ok(Self { id: (&file.metadata()?).into(), open: file.into() })
    }

    /// Gives a draft the owner, group, permissions and access control list of this file, of what
    /// the process may set.
    fn give_rights(&self, draft: &File) -> io::Result<()> {
        const ACL: &str = "system.posix_acl_access";
        let path = format!("/proc/self/fd/{}", self.open.as_raw_fd());
        let (old, new) = (fs::metadata(&path)?, draft.metadata()?);
        let group = Some(Gid::from_raw(old.gid())).filter(|_| old.gid() != new.gid());
        let owner = Some(Uid::from_raw(old.uid())).filter(|_| old.uid() != new.uid());
        let has_group = fchown(draft, owner, group).or_else(|_| fchown(draft, None, group)).is_ok();
        let mode = old.mode() & 0o7777;
        let mut list = [0; MOST_ACL_BYTES];
        let is_given = match getxattr(&path, ACL, &mut list) {
            _ if !has_group => false,
            // The list includes the permissions.
            Ok(len) => fsetxattr(draft, ACL, &list[..len], XattrFlags::empty()).is_ok(),
            Err(Errno::NODATA | Errno::NOTSUP) => fchmod(draft, Mode::from_raw_mode(mode)).is_ok(),
            Err(_) => false,
        };
        if !is_given {
            // Another group, or one that the list restricted, gets no more than everyone. Some file
            // systems have no permissions.
            let _ = fchmod(draft, Mode::from_raw_mode(mode & !0o070 | (mode & 0o007) << 3));
        }
        Ok(())
    }
}

impl NewFile {
    /// Examines a name for a file. A symbolic link stays, and its target is replaced.
    ///
    /// # Errors
    /// The name has a file that is an input, that is not regular, or that may not be replaced.
    pub fn at(path: &Path, written: Written, force: bool, inputs: &Inputs) -> Result<Self> {
        let shown = || path.display().to_string();
        ensure!(!path.as_os_str().as_bytes().ends_with(b"/"), "{} is not a file name", shown());
        let metadata = match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            found => Some(found.during(shown)?),
        };
        let mut new = Self { path: end_of(path)?, written, force, replaced: None };
        let Some(metadata) = metadata else { return Ok(new) };
        ensure!(!metadata.is_dir(), "{} is a directory; name a file in it", shown());
        ensure!(metadata.is_file(), "{} exists and is not a file: write to another file", shown());
        inputs.check(path, &metadata)?;
        if let Some(input) = inputs.perhaps_in(path, &metadata).filter(|_| !force) {
            refuse!(
                "{} is open in another program, and {input} may be stored in it: write to another file{}",
                shown(),
                written.or_force()
            );
        }
        if let Some(input) = inputs.perhaps_is(&metadata).filter(|_| !force) {
            refuse!(
                "{} may be {input} under another name, since it has the same size and time: write to another file{}",
                shown(),
                written.or_force()
            );
        }
        let replaced = Replaced::at(&new.path).ok().filter(|found| found.id == (&metadata).into());
        ensure!(replaced.is_some(), "{}: this file has no name: write to another file", shown());
        ensure!(
            !is_append_only(new.folder()),
            "{} is append-only, so no file in it can be replaced: write to another file",
            new.folder().display()
        );
        if let Some(around) = inputs.directory_around(&new.path) {
            // Only the output of an earlier run can be left out of this run's input.
            let file = File::open(&new.path).during(shown)?;
            ensure!(
                written.may_replace(&file).during(shown)?,
                "{}, and is in {around}, so that input would be lost: write to another file",
                written.refusal(path, &file).during(shown)?
            );
        }
        new.replaced = replaced;
        new.check_replaced()?;
        Ok(new)
    }

    /// Returns the path, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a file has the name already.
    pub fn replaces(&self) -> bool {
        self.replaced.is_some()
    }

    /// Creates a file to write to.
    pub fn make_draft(&self) -> Result<Draft> {
        self.make_guarded_draft(UNGUARDED)
    }

    /// Like [`make_draft`](Self::make_draft), with a guard of the file if it has a name.
    pub fn make_guarded_draft(&self, guard: Guard<'_>) -> Result<Draft> {
        let draft = Draft::new_in(self.folder(), guard)?;
        if self.replaced.is_some() {
            // It gets the rights of the other file once it is complete.
            let _ = fchmod(draft.file(), Mode::RUSR | Mode::WUSR);
        }
        Ok(draft)
    }

    /// Returns the directory that the file will be in.
    pub fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Gives a complete draft, which is in the same directory, its name. It keeps owner and
    /// permissions of the file that it replaces, of what the process may set.
    ///
    /// # Errors
    /// The name has another file than before, or one that may not be replaced anymore; this file is
    /// unchanged then.
    pub fn take(&self, draft: Draft) -> Result<()> {
        let writing = || format!("writing {}", self.path.display());
        self.check_replaced()?;
        if let Some(replaced) = &self.replaced {
            replaced.give_rights(draft.file()).during(writing)?;
            // After a power failure, the name has the whole old file or the whole new one.
            draft.file().sync_data().during(writing)?;
        }
        match draft.link(&self.path).during(writing)? {
            Linked::There => Ok(()),
            Linked::Apart(temporary) => self.rename(temporary),
        }
    }

    /// Checks that the name has no other file than before, and that it may be replaced.
    fn check_replaced(&self) -> Result<()> {
        let shown = || self.path.display().to_string();
        match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            found => ensure!(self.has_replaced(&found.during(shown)?), "{}", self.changed()),
        }
        if self.force {
            return Ok(());
        }
        let file = File::open(&self.path);
        let file = file.during(|| format!("{} exists and cannot be examined", shown()))?;
        if self.written.may_replace(&file).during(shown)? {
            return Ok(());
        }
        let why = self.written.refusal(&self.path, &file).during(shown)?;
        refuse!("{why}: write to another file{}", self.written.or_force())
    }

    /// Returns whether this is the file that had the name before.
    fn has_replaced(&self, found: &Metadata) -> bool {
        self.replaced.as_ref().is_some_and(|replaced| replaced.id == found.into())
    }

    fn changed(&self) -> String {
        let what = if self.replaced.is_some() { "replaced" } else { "created" };
        format!("{} was {what} by others in the meantime: it stays, and nothing is written", self.path.display())
    }

    /// Moves a file to the name, unless the name has another file than before.
    fn rename(&self, temporary: TempPath) -> Result<()> {
        let writing = || format!("writing {}", self.path.display());
        let without_replacing = |temporary: TempPath| match temporary.persist_noclobber(&self.path) {
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Err(Error::Refused(self.changed())),
            done => done.map_err(|error| error.error).during(writing),
        };
        if self.replaced.is_none() {
            return without_replacing(temporary);
        }
        let exchange = || renameat_with(CWD, &*temporary, CWD, &self.path, RenameFlags::EXCHANGE);
        match exchange() {
            Ok(()) if fs::symlink_metadata(&temporary).is_ok_and(|old| self.has_replaced(&old)) => {
                fs::remove_file(&temporary).during(writing)
            }
            // The name got another file after the check.
            Ok(()) => {
                if exchange().is_err() {
                    let kept = temporary.keep().map_err(|error| error.error).during(writing)?;
                    refuse!(
                        "{} was replaced by others in the meantime; it is now {}",
                        self.path.display(),
                        kept.display()
                    );
                }
                refuse!("{}", self.changed())
            }
            Err(Errno::NOENT) => without_replacing(temporary),
            // This file system cannot exchange files.
            Err(_) => temporary.persist(&self.path).map_err(|error| error.error).during(writing),
        }
    }
}

/// Returns the path that a file created at `path` would have without symbolic links.
fn end_of(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::canonicalize(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found.during(|| path.display().to_string()),
        }
        // The last part may be a symbolic link to a file that does not exist.
        let folder = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let full = fs::canonicalize(folder).during(|| format!("making a file in {}", folder.display()))?;
        let name = path.file_name();
        let Some(name) = name else { refuse!("{} is not a file name", path.display()) };
        match fs::read_link(&path) {
            Ok(target) => path = full.join(target),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(full.join(name)),
            Err(error) => return Err(error).during(|| path.display().to_string()),
        }
    }
    Err(Errno::LOOP).during(|| path.display().to_string())
}

#[cfg(test)]
mod tests;
