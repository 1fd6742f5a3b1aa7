//! The modules of `crates/server` depend in one direction, as its front page says.

use std::{collections::HashMap, fs, path::Path};

/// Each module uses only those before it.
const ORDER: [&str; 35] = [
    "observer",
    "config",
    "error",
    "events",
    "process",
    "machine",
    "counted",
    "descriptor_store",
    "service_manager",
    "memory_file",
    "client_memory",
    "socket",
    "bases",
    "backing",
    "base_device",
    "disk",
    "table",
    "in_use",
    "forks",
    "instants",
    "compaction",
    "disks",
    "ending",
    "freeze",
    "address",
    "transport",
    "belongings",
    "server",
    "handover",
    "manage",
    "metrics",
    "watch",
    "exporting",
    "listening",
    "taken",
];

/// Returns the code of a file, without its comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Returns the first names of the paths in a tree of imports: `{a::B, C}` has `a` and `C`.
fn roots(tree: &str) -> Vec<String> {
    let word = |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = tree.strip_prefix('{') else { return vec![word(tree)] };
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(word(&group[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(word(&group[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

/// Returns the files of a module.
fn files(folder: &Path, module: &str) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> =
        Some(folder.join(format!("{module}.rs"))).into_iter().filter(|file| file.exists()).collect();
    let mut folders: Vec<_> = Some(folder.join(module)).into_iter().filter(|folder| folder.is_dir()).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let entries = if entry.path().is_dir() { &mut folders } else { &mut files };
            entries.push(entry.path());
        }
    }
    files
}

#[test]
fn server_modules_depend_in_one_direction() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/src");
    let root = code(&folder.join("lib.rs"));
    let mut modules: Vec<_> = root.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
    modules.sort_unstable();
    let mut known = ORDER;
    known.sort_unstable();
    assert_eq!(modules, known, "every module has a place in the order");
    // What the root exports is in a module.
    let mut home = HashMap::new();
    for export in root.split("pub use ").skip(1) {
        let (module, names) = export.split_once("::").expect("a path");
        let names = names.split(';').next().unwrap_or_default();
        home.extend(roots(names).into_iter().map(|name| (name, module.to_owned())));
    }
    let place = |module: &str| ORDER.iter().position(|known| *known == module);
    let (mut wrong, mut seen) = (String::new(), 0);
    for (own, module) in ORDER.iter().enumerate() {
        let files = files(&folder, module);
        assert!(!files.is_empty(), "{module}");
        for file in files {
            for (at, _) in code(&file).match_indices("crate::") {
                for name in roots(&code(&file)[at + "crate::".len()..]) {
                    let used = home.get(&name).unwrap_or(&name);
                    seen += 1;
                    if place(used).is_some_and(|place| place > own) {
                        wrong += &format!("{}: {module} uses {used}\n", file.display());
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen > 40, "{seen} uses");
}

#[test]
fn the_names_in_an_import_are_found() {
    assert_eq!(roots("a::b::C;"), ["a"]);
    assert_eq!(roots("{\n    A, b::{C, d::E},\n    f::G,\n};"), ["A", "b", "f"]);
    assert_eq!(roots("{a::{self, B}}"), ["a"]);
}
