//! Files that this program writes. They replace no input, and only files of the same kind.

use std::{
    fs::{self, File, Permissions},
    io::{Read, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use anyhow::{Context, ensure};

/// The kinds of files that are written.
#[derive(Clone, Copy)]
pub enum Written {
    /// JSON lines.
    Figures,
    /// The page of a report.
    Markdown,
    /// An SVG file.
    Chart,
    /// Bytes of codecs.
    Table,
}

/// Bytes that are examined of an existing file.
const FRONT_BYTES: u64 = 1024;

impl Written {
    /// Returns a description, and texts that such files have at the beginning.
    fn known(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Figures => ("lines of figures", &["{\"bench\":\""]),
            Self::Markdown => ("a page of this program", &["# Results\n", "`pagefold-bench "]),
            Self::Chart => ("a chart of this program", &["<svg ", "role=\"img\">\n<title>"]),
            Self::Table => ("a table of this program", &["pagefold-bench sizes"]),
        }
    }

    /// Checks that a file may be written.
    ///
    /// # Errors
    /// It is one of `inputs`, or an existing file of another kind.
    pub fn check(self, path: &Path, inputs: &[&Path]) -> anyhow::Result<()> {
        let shown = path.display();
        let Ok(found) = fs::metadata(path) else { return Ok(()) };
        let id = |found: &fs::Metadata| (found.dev(), found.ino());
        for input in inputs {
            let is_input = fs::metadata(input).is_ok_and(|input| id(&input) == id(&found));
            ensure!(!is_input, "{shown} is read too: an output never replaces an input; write to another file");
        }
        ensure!(found.is_file(), "{shown} exists and is not a file: write to another file");
        let mut front = Vec::new();
        let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
        file.take(FRONT_BYTES).read_to_end(&mut front).with_context(|| format!("cannot read {shown}"))?;
        let (what, texts) = self.known();
        let front = String::from_utf8_lossy(&front);
        let is_ours = front.is_empty() || texts.iter().all(|text| front.contains(text));
        ensure!(is_ours, "{shown} exists and is not {what}: write to another file, or remove it");
        Ok(())
    }

    /// Checks a file and writes it. It is replaced as a whole, since a run may end at any time.
    ///
    /// # Errors
    /// Those of [`check`](Self::check), or it cannot be written.
    pub fn write(self, path: &Path, inputs: &[&Path], text: &str) -> anyhow::Result<()> {
        self.check(path, inputs)?;
        let write = || -> anyhow::Result<()> {
            // A symbolic link stays.
            let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
            let mut builder = tempfile::Builder::new();
            let mut file = builder.permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
            file.write_all(text.as_bytes())?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_same_kind_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.md");
        Written::Markdown.check(&path, &[]).unwrap();
        let page = "# Results\n\n`pagefold-bench report` made this page.";
        for text in ["", page] {
            fs::write(&path, text).unwrap();
            Written::Markdown.check(&path, &[]).unwrap();
        }
        let link = folder.path().join("link");
        fs::hard_link(&path, &link).unwrap();
        let error = Written::Markdown.check(&path, &[&link]).unwrap_err().to_string();
        assert!(error.contains("never replaces an input"), "{error}");
        for kind in [Written::Figures, Written::Chart, Written::Table] {
            let error = kind.check(&path, &[]).unwrap_err().to_string();
            assert!(error.contains("report.md exists and is not"), "{error}");
        }
        fs::write(&path, "my notes").unwrap();
        Written::Markdown.check(&path, &[]).unwrap_err();
        fs::write(&path, page).unwrap();
        let soft = folder.path().join("soft");
        std::os::unix::fs::symlink("report.md", &soft).unwrap();
        Written::Markdown.write(&soft, &[], page).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), page);
        assert!(fs::symlink_metadata(&soft).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }
}
