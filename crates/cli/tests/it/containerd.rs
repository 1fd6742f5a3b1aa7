//! Trees in registries under containerd's EROFS snapshotter, by the rules of its own code (2.4): which
//! layers its differ takes, what it compares, what it mounts, and where its cache of layers is.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pagefold_testing::{programs, registry::Registry, skip, skip_for_good};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{pagefold, run};

/// The media type that containerd takes for a layer. Its differ copies such a blob unchanged.
const LAYER: &str = "application/vnd.erofs.layer.v1";

fn blob(registry: &Registry, descriptor: &Value) -> PathBuf {
    registry.blob(descriptor["digest"].as_str().expect("a digest"))
}

fn read(registry: &Registry, descriptor: &Value) -> Value {
    serde_json::from_slice(&fs::read(blob(registry, descriptor)).expect("a blob")).expect("JSON")
}

/// Unpacks an image with the checks of containerd's unpacker. Returns its layers, the lowest first,
/// each with its name in the cache.
fn unpacked(registry: &Registry, fixed: &str) -> Vec<(PathBuf, PathBuf)> {
    let (_, digest) = fixed.trim_end().split_once('@').expect("a digest");
    let manifest = read(registry, &json!({ "digest": digest }));
    assert_eq!(manifest["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.oci.image.config.v1+json");
    let config = read(registry, &manifest["config"]);
    // What its differ for EROFS layers is for.
    assert_eq!((&config["os"], &config["os.features"]), (&json!("linux"), &json!(["erofs"])));
    assert_eq!(config["rootfs"]["type"], "layers");
    let layers = manifest["layers"].as_array().expect("layers").iter();
    let layers: Vec<_> = layers.filter(|layer| layer["mediaType"] == LAYER).collect();
    let diffs = config["rootfs"]["diff_ids"].as_array().expect("sums");
    assert_eq!(layers.len(), diffs.len(), "as many layers as it finds");
    let unpack = |(layer, diff): (&&Value, &Value)| {
        assert_eq!(&layer["digest"], diff);
        let (algorithm, digits) = diff.as_str().and_then(|diff| diff.split_once(':')).expect("a sum");
        (blob(registry, layer), Path::new(algorithm).join(&digits[..2]).join(format!("{digits}.erofs")))
    };
    layers.iter().zip(diffs).map(unpack).collect()
}

/// Mounts a file system, which is unmounted on drop.
struct Mounted(PathBuf);

impl Mounted {
    fn new(test: &str, at: &Path, args: &[&str]) -> Option<Self> {
        fs::create_dir_all(at).expect("a folder");
        let mounted = Command::new("mount").args(args).arg(at).output().expect("mount");
        if !mounted.status.success() {
            skip_for_good(test, &format!("the kernel does not mount it: {}", String::from_utf8_lossy(&mounted.stderr)));
            return None;
        }
        Some(Self(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A tree is pushed, and mounted as a container's root from the blob, from a cache directory, and with the
/// dm-verity tree that the differ or the builder of the cache appends.
#[test]
fn a_pushed_tree_is_a_layer_of_containerd() {
    const TEST: &str = "a_pushed_tree_is_a_layer_of_containerd";
    let Some(registry) = Registry::start(TEST) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let tree = at("tree");
    fs::create_dir_all(tree.join("etc/many")).expect("a folder");
    for number in 0..200 {
        fs::write(tree.join(format!("etc/many/{number}")), format!("{number}\n").repeat(number)).expect("a file");
    }
    symlink("many/7", tree.join("etc/seven")).expect("a link");
    run(pagefold().arg("pack").arg(&tree).arg("-o").arg(at("image.erofs")));
    let push = pagefold()
        .args(["push", "--media-type", "containerd"])
        .arg(at("image.erofs"))
        .arg(registry.url("a:1"))
        .output();
    let push = push.expect("the program starts");
    assert!(push.status.success(), "{}", String::from_utf8_lossy(&push.stderr));
    let fixed = String::from_utf8(push.stdout).expect("text");
    let [(layer, name)] = &unpacked(&registry, &fixed)[..] else { panic!("one layer") };

    let cached = at("cache").join(name);
    let fetch = |changes: &[&str]| {
        let mut fetch = pagefold();
        fetch.args(["fetch", "--chunk-cache", text(&at("chunks"))]).args(changes);
        fetch.arg("--layer-cache").arg(at("cache")).arg(registry.url("a:1"));
        fetch
    };
    run(&mut fetch(&[]));
    let (all, own) = (fs::read(&cached).expect("a layer"), fs::read(layer).expect("a blob"));
    let (front, behind) = all.split_at(own.len());
    let end = own.len().next_multiple_of(4096);
    assert!(front == own && behind[..end - own.len()].iter().all(|byte| *byte == 0));
    let beside = fs::read(format!("{}.dmverity", cached.display())).expect("a file");
    let beside: Value = serde_json::from_slice(&beside).expect("JSON");
    let root = beside["roothash"].as_str().expect("a sum");
    assert_eq!(beside, json!({ "roothash": root, "hashoffset": end }));
    if let Some([veritysetup]) = programs(TEST, ["veritysetup"]) {
        let verify = |root: &str| {
            let mut verify = Command::new(&veritysetup);
            verify.arg("verify").args([&cached, &cached]).args([root, &format!("--hash-offset={end}")]);
            verify.output().expect("it starts")
        };
        let found = verify(root);
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        assert!(!verify(&"0".repeat(64)).status.success());
    }
    // A layer that is there stays.
    let written = fs::metadata(&cached).and_then(|metadata| metadata.modified()).expect("a time");
    run(&mut fetch(&[]));
    assert_eq!(fs::metadata(&cached).and_then(|metadata| metadata.modified()).expect("a time"), written);
    let mut damaged = all.clone();
    damaged[2000] ^= 1;
    fs::write(&cached, &damaged).expect("a file");
    run(&mut fetch(&[]));
    assert_eq!(fs::read(&cached).expect("a layer"), all, "a damaged layer is written again");
    fs::remove_file(&cached).expect("removed");
    // The chunks are in the cache, but the end of the layer is not.
    assert_eq!(fetch(&["--offline"]).status().expect("it starts").code(), Some(1));
    assert!(!cached.exists());
    fs::write(&cached, "damaged").expect("a file");
    fs::remove_file(format!("{}.dmverity", cached.display())).expect("removed");
    run(&mut fetch(&[]));
    assert_eq!(fs::read(&cached).expect("a layer"), all, "the same bytes each time");
    run(pagefold().arg("check").arg(&cached));
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "only root can mount");
    }
    for (number, blob) in [layer, &cached].into_iter().enumerate() {
        let lower = at(&format!("lower{number}"));
        let Some(_lower) = Mounted::new(TEST, &lower, &["-t", "erofs", "-o", "ro,loop", text(blob)]) else { return };
        let (upper, work, root) =
            (at(&format!("upper{number}")), at(&format!("work{number}")), at(&format!("root{number}")));
        [&upper, &work].iter().for_each(|path| fs::create_dir(path).expect("a folder"));
        let options = format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let Some(_root) = Mounted::new(TEST, &root, &["-t", "overlay", "-o", &options, "overlay"]) else { return };
        run(Command::new("diff").args(["-r", "--no-dereference"]).args([&tree, &root]));
        fs::write(root.join("etc/many/7"), "changed").expect("a change");
        assert_eq!(fs::read_to_string(upper.join("etc/many/7")).expect("a file"), "changed");
    }
}

/// Processes that fetch the same layer at the same time all succeed, whichever is the first.
#[test]
fn a_layer_is_fetched_by_several_processes() {
    const TEST: &str = "a_layer_is_fetched_by_several_processes";
    let Some(registry) = Registry::start(TEST) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), vec![b'x'; 1 << 20]).expect("a file");
    run(pagefold().arg("pack").arg(at("file")).args(["--codec", "none", "-o"]).arg(at("image.erofs")));
    run(pagefold().arg("push").arg(at("image.erofs")).arg(registry.url("a:1")));
    for round in 0..5 {
        let cache = at(&format!("layers{round}"));
        let fetch = |number: usize| {
            let mut fetch = pagefold();
            fetch.arg("fetch").arg("--chunk-cache").arg(at(&format!("chunks{round}-{number}")));
            fetch.arg("--layer-cache").arg(&cache).arg(registry.url("a:1"));
            fetch.stderr(Stdio::piped()).spawn().expect("it starts")
        };
        let fetches: Vec<_> = (0..4).map(fetch).collect();
        for fetch in fetches {
            let fetched = fetch.wait_with_output().expect("it ends");
            assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
        }
        let layers = fs::read_dir(cache.join("sha256")).expect("a folder").flatten();
        let names: Vec<_> = layers.flat_map(|layer| fs::read_dir(layer.path()).expect("a folder")).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }
}

/// The differ finds as many layers as the configuration has sums, even if an index is a separate
/// layer.
#[test]
fn indexes_are_not_layers_of_containerd() {
    const TEST: &str = "indexes_are_not_layers_of_containerd";
    let Some(registry) = Registry::start(TEST) else { return };
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    crate::server::make_image(Path::new(&at("disk.img")), 2);
    run(pagefold().args(["pack", &at("disk.img"), "-o", &at("base.erofs")]));
    let server = crate::server::Server::start(&[&at("base.erofs")]);
    run(&mut server.ask(&["fork", "base", "job"]));
    let pushed = server.ask(&["freeze", "job", "--media-type", "containerd", "--push", &registry.url("a:1")]).output();
    let pushed = pushed.expect("the program starts");
    assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    assert_eq!(unpacked(&registry, &String::from_utf8(pushed.stdout).expect("text")).len(), 2);
    let fetched = pagefold()
        .args(["fetch", "--chunk-cache", &at("chunks"), "--layer-cache", &at("cache"), &registry.url("a:1")])
        .output();
    let fetched = fetched.expect("the program starts");
    let error = String::from_utf8_lossy(&fetched.stderr);
    assert!(!fetched.status.success() && error.contains("containerd does not support"), "{error}");
}
