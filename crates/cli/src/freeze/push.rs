//! `pagefold freeze --push`: the image goes to a registry.

use std::{env, path::PathBuf, sync::Arc};

use anyhow::{Context, anyhow, ensure};
use pagefold_erofs::{BuildOptions, ReadAt};
use pagefold_output::ImageFormat;
use pagefold_remote::{Clusters, Location, Part, Reference};
use pagefold_server::{BaseImage, Frozen};

use super::{Args, with_place};
use crate::{progress::ProgressLine, remote::parts, report::misuse, storage, text::message};

impl Args {
    /// Stores the disk at `location`.
    pub(super) fn push(&self, location: &str) -> anyhow::Result<()> {
        let location = Location::parse(location).map_err(misuse)?;
        ensure!(
            matches!(location, Location::Oci(_)),
            misuse(anyhow!("--push stores in a registry: give oci://REGISTRY/REPOSITORY:TAG"))
        );
        self.remote.must_send("--push")?;
        let asked = self.asked_for_push().map_err(misuse)?;
        pagefold_remote::check(None, &[], &location)?;
        let name = location.to_string();
        // Under another image, the base could not be opened again.
        let is_same = |open: &PathBuf| open.to_str().is_some_and(|open| is_tag(open, &location));
        ensure!(
            !self.peer.open_images()?.iter().any(is_same),
            "{name}: the server has a base open by this tag: push to another tag, or serve the base with its sum, as \
             @sha256:DIGITS"
        );
        let frozen = Frozen::of_client(self.peer.connect()?, &self.name)?;
        let described = frozen.described();
        let within = || described.clone();
        let base = match asked {
            Some(_) => None,
            None => {
                let remote = self.remote.clone();
                let base = frozen.base_image(&move |name| storage::open(name, &remote));
                base.map_err(|error| {
                    let what = message(&error.into());
                    anyhow!("{what}; with --codec, all of the disk is pushed without the base")
                })
                .with_context(within)?
            }
        };
        let devices = base.as_ref().map_or_else(|| Ok(Vec::new()), layers_of).with_context(within)?;
        // Checked before the image is built.
        pagefold_remote::check(None, &devices, &location)?;
        let options = match (&base, asked) {
            (Some(base), _) => BuildOptions {
                threads: self.threads,
                base_is_device: true,
                base_sha256: devices.first().map(|part| part.sum().into()),
                ..base.options().with_context(within)?
            },
            (None, Some(asked)) => asked,
            (None, None) => BuildOptions { threads: self.threads, ..BuildOptions::default() },
        };
        // It has no name, so it is gone when the command ends, however that happens.
        let file = tempfile::tempfile().context("cannot create a temporary file")?;
        let mut line = ProgressLine::new();
        let mut progress = |done_bytes, total_bytes| line.show(done_bytes, total_bytes);
        let written = frozen.write_erofs(&file, &options, base.as_ref(), &mut progress);
        drop(line);
        let place = format!("a temporary file in {}", env::temp_dir().display());
        let image = written.map_err(|error| with_place(error, &place)).with_context(within)?;
        self.check_image(&image, &file, &name).with_context(within)?;
        drop(frozen);
        let file: Arc<dyn ReadAt> = Arc::new(file);
        let clusters = Clusters::of(&image.open(Arc::clone(&file)).with_context(within)?);
        let part = Part::of_image(file, &clusters).with_context(within)?;
        crate::remote::push::push(&part, &devices, &location, self.push.media_type)
    }

    /// Returns the options of the image that the command line requests.
    fn asked_for_push(&self) -> anyhow::Result<Option<BuildOptions>> {
        let is_erofs = self.format.is_none_or(|format| ImageFormat::from(format) == ImageFormat::Erofs);
        ensure!(is_erofs, "--push is for --format erofs");
        ensure!(!self.backing, "--push sends only what changed since an EROFS base: leave out --backing");
        ensure!(!self.force, "--force is for -o: a tag in a registry is always replaced");
        self.asked()
    }
}

/// Returns whether an image was opened by the tag at `location`.
fn is_tag(open: &str, location: &Location) -> bool {
    let tag = |reference: &Reference| reference.tag.clone().unwrap_or_else(|| "latest".to_owned());
    match (Location::parse(open), location) {
        (Ok(Location::Oci(open)), Location::Oci(to)) => {
            open.manifest.is_none()
                && (&open.registry, &open.repository, tag(&open)) == (&to.registry, &to.repository, tag(to))
        }
        _ => false,
    }
}

/// Returns the parts of a base's image in a registry.
fn layers_of(base: &BaseImage) -> anyhow::Result<Vec<Part>> {
    // The base's own blob has no tag yet.
    let tags: Vec<_> = std::iter::once([0; 64]).chain(base.device_tags()).collect();
    parts::devices(base.parts(), &tags)
}
