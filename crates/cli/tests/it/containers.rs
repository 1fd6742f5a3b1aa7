//! Container images as sources: OCI layouts and archives, and those of `docker save`.

use std::{fmt::Write as _, fs, io::Write as _, path::Path, process::Command};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::server::{pagefold, run, run_to_fail};

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// A directory in which an image is laid out.
struct Layout {
    folder: TempDir,
}

impl Layout {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        fs::create_dir_all(folder.path().join("oci/blobs/sha256")).expect("folders");
        fs::write(folder.path().join("oci/oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("a file");
        Self { folder }
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a plain path").to_owned()
    }

    /// Returns an archive of files, made by tar.
    fn layer(&self, files: &[(&str, &str)]) -> Vec<u8> {
        let tree = self.at("tree");
        let _ = fs::remove_dir_all(&tree);
        for (name, text) in files {
            let path = Path::new(&tree).join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("a file");
        }
        run(Command::new("tar").args(["--sort=name", "-C", &tree, "-cf", &self.at("layer"), "."]));
        fs::read(self.at("layer")).expect("a layer")
    }

    fn blob(&self, bytes: &[u8]) -> Value {
        let hex = digest(bytes);
        fs::write(self.at(&format!("oci/blobs/sha256/{hex}")), bytes).expect("a blob");
        json!({ "digest": format!("sha256:{hex}"), "size": bytes.len() })
    }

    fn document(&self, document: &Value) -> Value {
        self.blob(document.to_string().as_bytes())
    }

    /// Adds an image of these layers; each is given as stored and as an archive.
    fn image(&self, layers: &[(Vec<u8>, Vec<u8>)], architecture: &str) -> Value {
        let diff_ids: Vec<_> = layers.iter().map(|(_, plain)| format!("sha256:{}", digest(plain))).collect();
        let config = json!({ "os": "linux", "architecture": architecture, "rootfs": { "type": "layers", "diff_ids": diff_ids } });
        let stored: Vec<_> = layers.iter().map(|(stored, _)| self.blob(stored)).collect();
        self.document(&json!({ "schemaVersion": 2, "config": self.document(&config), "layers": stored }))
    }

    fn index(&self, manifests: &[Value]) {
        fs::write(self.at("oci/index.json"), json!({ "schemaVersion": 2, "manifests": manifests }).to_string())
            .expect("an index");
    }

    fn two_layers(&self) -> [(Vec<u8>, Vec<u8>); 2] {
        let lower = self.layer(&[("etc/one", "one"), ("etc/two", "two"), ("opt/old", "old")]);
        let upper = self.layer(&[("etc/.wh.one", ""), ("etc/two", "new"), (".wh.opt", "")]);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let gzip = gzip.write_all(&lower).and_then(|()| gzip.finish()).expect("memory");
        [(gzip, lower), (zstd::encode_all(&upper[..], 1).expect("memory"), upper)]
    }

    fn pack(&self, args: &[&str]) -> String {
        run(pagefold().arg("pack").args(args).args(["-o", &self.at("image")]));
        run(pagefold().args(["ls", "-R", &self.at("image")])).lines().collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn refused(&self, args: &[&str], named: &str) {
        let said = run_to_fail(pagefold().arg("pack").args(args).args(["-o", &self.at("none")]));
        assert!(said.contains(named), "{said}");
        assert!(!fs::exists(self.at("none")).expect("a folder"));
    }
}

const MACHINE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

#[test]
fn a_container_image_is_packed_as_its_root() {
    let layout = Layout::new();
    let at = |name: &str| layout.at(name);
    layout.index(&[layout.image(&layout.two_layers(), "amd64")]);
    run(Command::new("tar").args(["-C", &at("oci"), "-cf", &at("oci.tar"), "."]));
    run(Command::new("tar").args(["-C", &at("oci"), "-czf", &at("oci.tar.gz"), "oci-layout", "index.json", "blobs"]));
    for source in [at("oci"), at("oci.tar"), at("oci.tar.gz")] {
        assert_eq!(layout.pack(&[&source, "--verify"]), "etc etc/two", "{source}");
        assert_eq!(run(pagefold().args(["cat", &(at("image") + ":etc/two")])), "new");
        run(pagefold().args(["check", "--against", &source, &at("image")]));
        // The layers are below those of further sources, and a layer keeps its whiteouts.
        fs::create_dir_all(at("above/etc")).expect("a folder");
        fs::write(at("above/etc/three"), "three").expect("a file");
        assert_eq!(layout.pack(&[&source, &at("above")]), "etc etc/three etc/two");
        assert_eq!(layout.pack(&["--layer", &source]), "etc opt etc/one etc/two");
        // Exclusions are for the root, not for the blobs.
        assert_eq!(layout.pack(&[&source, "--exclude", "two", "--exclude", "*.json"]), "etc");
    }
    // From a pipe, too.
    run(pagefold().args(["pack", "-", "-o", &at("image")]).stdin(fs::File::open(at("oci.tar.gz")).expect("it")));
    assert_eq!(run(pagefold().args(["ls", "-R", &at("image")])), "etc\netc/two\n");
    assert!(layout.pack(&[&at("oci"), "--format", "raw"]).starts_with("blobs index.json oci-layout"));
}

#[test]
fn an_archive_of_docker_save_is_packed_as_its_root() {
    let layout = Layout::new();
    let at = |name: &str| layout.at(name);
    let [(_, lower), (_, upper)] = layout.two_layers();
    let diff_ids = [&lower, &upper].map(|layer| format!("sha256:{}", digest(layer)));
    let config = json!({ "os": "linux", "architecture": "s390x", "rootfs": { "diff_ids": diff_ids } }).to_string();
    let saved = |config_name: &str, layers: [&str; 2]| {
        let manifest = json!([{ "Config": config_name, "RepoTags": ["app:1"], "Layers": layers }]);
        fs::write(at("save/manifest.json"), manifest.to_string()).expect("a manifest");
        run(Command::new("tar").args(["-C", &at("save"), "-cf", &at("app.tar"), "."]));
    };
    let config_name = format!("{}.json", digest(config.as_bytes()));
    for (name, layer) in [("aa", &lower), ("bb", &upper)] {
        fs::create_dir_all(at(&format!("save/{name}"))).expect("a folder");
        fs::write(at(&format!("save/{name}/layer.tar")), layer).expect("a layer");
    }
    fs::write(at(&format!("save/{config_name}")), &config).expect("a config");
    std::os::unix::fs::symlink("../bb/layer.tar", at("save/aa/link.tar")).expect("a link");
    for top in ["bb/layer.tar", "aa/link.tar"] {
        saved(&config_name, ["aa/layer.tar", top]);
        assert_eq!(layout.pack(&[&at("app.tar")]), "etc etc/two");
        assert_eq!(run(pagefold().args(["cat", &(at("image") + ":etc/two")])), "new");
    }
    // Layers in another order, and a config that is not the one named.
    saved(&config_name, ["bb/layer.tar", "aa/layer.tar"]);
    layout.refused(&[&at("app.tar")], "app.tar: layer 1 of 2, decompressed: its digest is");
    let other = format!("{}.json", "0".repeat(64));
    fs::write(at(&format!("save/{other}")), &config).expect("a config");
    saved(&other, ["aa/layer.tar", "bb/layer.tar"]);
    layout.refused(&[&at("app.tar")], "its digest is");
    // An archive with a file of this name that is not from docker save is packed unchanged.
    for manifest in
        ["[]", "{}", "not JSON", r#"[{"Config":"none","Layers":[]}]"#, r#"[{"Config":"/etc/passwd","Layers":[]}]"#]
    {
        fs::write(at("save/manifest.json"), manifest).expect("a manifest");
        run(Command::new("tar").args(["-C", &at("save"), "-cf", &at("app.tar"), "manifest.json", "aa"]));
        assert_eq!(layout.pack(&[&at("app.tar")]), "aa manifest.json aa/layer.tar aa/link.tar", "{manifest}");
    }
}

#[test]
fn incomplete_images_are_not_packed_as_files() {
    let layout = Layout::new();
    let at = |name: &str| layout.at(name);
    layout.index(&[layout.image(&layout.two_layers(), "amd64")]);
    let archive = |folder: &str| {
        run(Command::new("tar").args(["-C", &at(folder), "-cf", &at("all.tar"), "."]));
        at("all.tar")
    };
    for name in ["oci-layout", "index.json"] {
        fs::rename(at("oci").clone() + "/" + name, at("away")).expect("a file");
        for source in [at("oci"), archive("oci")] {
            let named = format!("{source}: it is an incomplete OCI layout: {name} is missing: save or copy");
            for args in [&[][..], &["--layer"]] {
                layout.refused(&[&[&*source], args].concat(), &named);
            }
        }
        assert!(layout.pack(&[&at("oci"), "--format", "raw"]).starts_with("blobs "), "{name}");
        fs::rename(at("away"), at("oci").clone() + "/" + name).expect("a file");
    }
    // A page, or another program's file, next to folders of these names.
    let index = fs::read(at("oci/index.json")).expect("an index");
    fs::remove_file(at("oci/oci-layout")).expect("a file");
    for other in ["{}", "[]", "text"] {
        fs::write(at("oci/index.json"), other).expect("a file");
        for source in [at("oci"), archive("oci")] {
            assert!(layout.pack(&[&source]).starts_with("blobs index.json blobs/sha256 "), "{other}");
        }
    }
    fs::write(at("oci/index.json"), index).expect("a file");
    fs::rename(at("oci/blobs/sha256"), at("oci/blobs/other")).expect("a folder");
    for source in [at("oci"), archive("oci")] {
        assert!(layout.pack(&[&source]).starts_with("blobs index.json blobs/other "));
    }

    let config = format!("{}.json", "0".repeat(64));
    for (files, missing) in [
        (&["aa/layer.tar", "bb/layer.tar"][..], &*config),
        (&["aa/layer.tar", &config], "bb/layer.tar"),
        (&["bb/layer.tar", &config], "aa/layer.tar"),
        (&[], "aa/layer.tar"),
    ] {
        let _ = fs::remove_dir_all(at("save"));
        for folder in ["save/aa", "save/bb"] {
            fs::create_dir_all(at(folder)).expect("a folder");
        }
        files.iter().for_each(|name| fs::write(at("save").clone() + "/" + name, "text").expect("a file"));
        let manifest = json!([{ "Config": config, "RepoTags": null, "Layers": ["aa/layer.tar", "bb/layer.tar"] }]);
        fs::write(at("save/manifest.json"), manifest.to_string()).expect("a manifest");
        let source = archive("save");
        let named = format!(
            "{source}: it is an incomplete archive of 'docker save': {missing} is missing, but manifest.json names it: \
             save or copy"
        );
        layout.refused(&[&source], &named);
        // Its files in a directory are files.
        assert!(layout.pack(&[&at("save")]).contains("aa bb manifest.json"), "{missing}");
    }
}

#[test]
fn an_archive_of_docker_save_without_its_manifest_is_refused() {
    let layout = Layout::new();
    let at = |name: &str| layout.at(name);
    let hex = "0123456789abcdef".repeat(4);
    let old = "before Docker 1.10: 'docker load' and 'docker save' write a current one";
    for (files, manifest, said) in [
        (&["ID/layer.tar", "ID/json", "repositories"][..], None, old),
        (&["ID/layer.tar", "ID.json"], None, "manifest.json is missing: save or copy"),
        (&["ID/layer.tar"], Some("[]"), "manifest.json does not describe an image: save or copy"),
        (&["ID/layer.tar", "repositories"], Some("not JSON"), "manifest.json does not describe an image"),
        (&["ID.tar", "ID.json"], Some("{}"), "manifest.json does not describe an image"),
        (&["ID.tar", "ID.json"], None, ""),
        (&["ID/other.tar", "repositories"], Some("[]"), ""),
        (&["other/layer.tar", "other.json"], Some("[]"), ""),
    ] {
        let _ = fs::remove_dir_all(at("save"));
        for name in files {
            let path = at(&format!("save/{}", name.replace("ID", &hex)));
            fs::create_dir_all(Path::new(&path).parent().expect("a folder")).expect("folders");
            fs::write(path, "{}").expect("a file");
        }
        if let Some(manifest) = manifest {
            fs::write(at("save/manifest.json"), manifest).expect("a file");
        }
        run(Command::new("tar").args(["-C", &at("save"), "-cf", &at("app.tar"), "."]));
        if said.is_empty() {
            layout.pack(&[&at("app.tar")]);
        } else {
            layout.refused(&[&at("app.tar")], said);
            layout.pack(&[&at("save"), "--format", "raw"]);
        }
    }
}

#[test]
fn encrypted_layers_are_refused_by_their_type() {
    let layout = Layout::new();
    let layers = layout.two_layers();
    let mut stored: Vec<_> = layers.iter().map(|(stored, _)| layout.blob(stored)).collect();
    stored[1]["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip+encrypted".into();
    let diff_ids: Vec<_> = layers.iter().map(|(_, plain)| format!("sha256:{}", digest(plain))).collect();
    let config = json!({ "os": "linux", "architecture": MACHINE, "rootfs": { "diff_ids": diff_ids } });
    layout.index(&[layout.document(&json!({ "config": layout.document(&config), "layers": stored }))]);
    layout.refused(&[&layout.at("oci")], "layer 2 of 2: it is encrypted: 'skopeo copy --decryption-key KEY");
}

#[test]
fn one_platform_is_taken() {
    let layout = Layout::new();
    let oci = layout.at("oci");
    let layer = |name: &str| {
        let layer = layout.layer(&[(name, name)]);
        (layer.clone(), layer)
    };
    let with = |mut descriptor: Value, platform: &[&str]| {
        descriptor["platform"] = json!({ "os": platform[0], "architecture": platform[1], "variant": platform.get(2) });
        descriptor
    };
    let here = with(layout.image(&[layer("here")], MACHINE), &["linux", MACHINE]);
    let v6 = with(layout.image(&[layer("v6")], "arm"), &["linux", "arm", "v6"]);
    let v7 = with(layout.image(&[layer("v7")], "arm"), &["linux", "arm", "v7"]);
    let mut proof = with(layout.image(&[layer("proof")], "unknown"), &["unknown", "unknown"]);
    proof["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest" });
    let absent = with(json!({ "digest": format!("sha256:{}", "0".repeat(64)), "size": 1 }), &["linux", "riscv64"]);
    let nested = layout.document(&json!({ "schemaVersion": 2, "manifests": [here, v6, v7, proof.clone(), absent] }));
    layout.index(&[nested]);
    assert_eq!(layout.pack(&[&oci]), "here");
    assert_eq!(layout.pack(&[&oci, "--platform", "linux/arm/v7"]), "v7");
    layout.refused(&[&oci, "--platform", "linux/arm"], "several images for linux/arm: linux/arm/v6, linux/arm/v7");
    layout.refused(
        &[&oci, "--platform", "linux/riscv64"],
        &format!("select one with --platform: linux/{MACHINE}, linux/arm/v6"),
    );
    // The only image is taken, whatever its platform.
    layout.index(&[v6.clone(), proof]);
    assert_eq!(layout.pack(&[&oci]), "v6");
    // Without descriptions, configs say it.
    layout.index(&[layout.image(&[layer("s390x")], "s390x"), layout.image(&[layer("mips")], "mips")]);
    layout.refused(&[&oci], "linux/s390x, linux/mips");
    assert_eq!(layout.pack(&[&oci, "--platform", "linux/mips"]), "mips");
}

/// What is not there, or not a layer, is named.
#[test]
fn images_without_layers_to_read_are_refused_by_name() {
    let layout = Layout::new();
    let oci = layout.at("oci");
    // An EROFS image as a layer, as `push` makes them.
    fs::write(layout.at("disk"), [7; 9000]).expect("a file");
    run(pagefold().args(["pack", &layout.at("disk"), "-o", &layout.at("erofs")]));
    let image = fs::read(layout.at("erofs")).expect("an image");
    let zip = [&b"PK\x03\x04"[..], &[7; 1000]].concat();
    for (layer, named) in [(image, "is an EROFS image: give this file to 'pagefold ls'"), (zip, "but a zip archive")] {
        layout.index(&[layout.image(&[(layer.clone(), layer.clone())], MACHINE)]);
        layout.refused(&[&oci], &format!("layer 1 of 1: blobs/sha256/{}", digest(&layer)));
        layout.refused(&[&oci], named);
    }
    // A manifest that is a link out of the layout, and one that was not saved.
    let manifest = layout.image(&layout.two_layers(), MACHINE);
    layout.index(std::slice::from_ref(&manifest));
    let path = format!("blobs/{}", manifest["digest"].as_str().expect("a digest").replace(':', "/"));
    let blob = layout.at(&format!("oci/{path}"));
    fs::rename(&blob, layout.at("outside")).expect("a file");
    layout.refused(&[&oci], &format!("it contains no image that can be read: {path} is missing"));
    std::os::unix::fs::symlink("../../../outside", &blob).expect("a link");
    layout.refused(&[&oci], &format!("{path} is missing: a link leads to a file outside"));
}

/// Each defect is refused regardless of the rest of the layout, and no file outside is read.
#[test]
fn damaged_or_hostile_images_are_refused() {
    let layout = Layout::new();
    let oci = layout.at("oci");
    let good = layout.two_layers();
    let manifest = layout.image(&good, "amd64");
    let stored = digest(&good[0].0);
    let blob = layout.at(&format!("oci/blobs/sha256/{stored}"));
    layout.index(std::slice::from_ref(&manifest));
    layout.pack(&[&oci]);
    // A layer of the same size, a shorter one, none, and one that is a link to a file outside.
    let mut damaged = good[0].0.clone();
    damaged[good[0].0.len() / 2] ^= 1;
    fs::write(&blob, &damaged).expect("a blob");
    layout.refused(&[&oci], "layer 1 of 2");
    fs::write(&blob, &damaged[..100]).expect("a blob");
    layout.refused(&[&oci], "not the size that its manifest states");
    fs::remove_file(&blob).expect("a blob");
    layout.refused(&[&oci], &format!("blobs/sha256/{stored} is missing"));
    fs::write(layout.at("outside"), &good[0].0).expect("a file");
    std::os::unix::fs::symlink("../../../outside", &blob).expect("a link");
    layout.refused(&[&oci], &format!("blobs/sha256/{stored} is missing: a link leads to a file outside"));
    fs::remove_file(&blob).expect("a link");
    std::os::unix::fs::symlink(&stored, &blob).expect("a link");
    layout.refused(&[&oci], "too many symbolic links");
    fs::remove_file(&blob).expect("a link");
    fs::write(&blob, &good[0].0).expect("a blob");
    // Digests that are paths, or unknown.
    for digest in ["sha256:../../../../etc/passwd", "md5:00", "", "sha256:"] {
        layout.index(&[json!({ "digest": digest, "size": 1 })]);
        layout.refused(&[&oci], "digest");
    }
    // A file that is not an image, too many layers for the config, an index that contains itself,
    // no image.
    let config = layout.document(&json!({ "values": 1 }));
    layout.index(&[layout.document(&json!({ "config": config, "layers": [] }))]);
    layout.refused(&[&oci], "something other than a container image");
    let config = layout.document(&json!({ "os": "linux", "architecture": "amd64", "rootfs": { "diff_ids": [] } }));
    let layers = [layout.blob(&good[0].0)];
    layout.index(&[layout.document(&json!({ "config": config, "layers": layers }))]);
    layout.refused(&[&oci], "has 1 layers, but its config describes 0");
    let mut nested = manifest;
    for _ in 0..6 {
        nested = layout.document(&json!({ "manifests": [nested] }));
    }
    layout.index(&[nested]);
    layout.refused(&[&oci], "indexes are nested");
    layout.index(&[]);
    layout.refused(&[&oci], "no image");
    fs::write(layout.at("oci/index.json"), "{").expect("an index");
    layout.refused(&[&oci], "index.json cannot be understood");
    // A layer that is not an archive.
    let text = b"text\n".repeat(1000);
    layout.index(&[layout.image(&[(text.clone(), text)], "amd64")]);
    layout.refused(&[&oci], "layer 1 of 1");
}
