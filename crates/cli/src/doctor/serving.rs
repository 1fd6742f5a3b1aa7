//! Checks the needs of a server of disks: a directory, memory, files.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use pagefold_server::{Memory, meminfo_bytes};
use rustix::fs::{Access, access};

use super::{
    check::{
        ALWAYS, Check,
        Status::{Limited, Missing, Works},
    },
    machine::Machine,
};
use crate::{serve::needed_descriptors, size};

/// With less memory than this, a server is hardly useful.
const LITTLE_BYTES: u64 = 256 << 20;

/// With fewer open files than this, a server cannot listen and also serve one client.
const FEWEST_FILES: u64 = 64;

const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_RESOURCE: u32 = 24;

/// A known fault of Linux, from one version to before another.
struct Fault {
    from: (u32, u32),
    before: (u32, u32),
    what: &'static str,
    advice: &'static str,
}

const FAULTS: [Fault; 2] = [
    Fault {
        from: (6, 12),
        before: (6, 13),
        what: "the kernel may fault when a server ends while a ublk device is in use",
        advice: "detach devices with 'pagefold detach' before their server ends, or use 'pagefold attach --via nbd'",
    },
    Fault {
        from: (6, 18),
        before: (6, 19),
        what: "EROFS reads wrong content where uncompressed chunks of different devices have consecutive numbers",
        advice: "images of 'pagefold freeze --backing' avoid it; do not mount such images of mkfs.erofs --blobdev",
    },
];

pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    vec![
        kernel(machine),
        directory(machine),
        memory(machine),
        overcommit(machine),
        address_space(machine),
        open_files(machine),
        locked_memory(machine),
        huge_pages(machine),
    ]
}

fn kernel(machine: &Machine) -> Check {
    let release = machine.release().unwrap_or_else(|| "of unknown version".to_owned());
    let version = machine.linux();
    let applies = |fault: &&Fault| version.is_some_and(|version| (fault.from..fault.before).contains(&version));
    let faults: Vec<_> = FAULTS.iter().filter(applies).collect();
    if faults.is_empty() {
        return Check::new("kernel", ALWAYS, Works, format!("Linux {release}; no fault of it is known here"));
    }
    let words = |word: fn(&Fault) -> &str| faults.iter().map(|fault| word(fault)).collect::<Vec<_>>().join("; ");
    let found = format!("Linux {release}: {}", words(|fault| fault.what));
    Check::new("kernel", ALWAYS, Limited, found).advice(words(|fault| fault.advice))
}

fn directory(machine: &Machine) -> Check {
    let check = own_directory(machine);
    if check.status != Missing || !machine.gets_sockets() {
        return check;
    }
    // Only a server that is started by hand needs one.
    let found = format!("pagefold.socket and pagefold-control.socket pass a server its sockets; {}", check.found);
    Check { status: Limited, found, ..check }
}

fn own_directory(machine: &Machine) -> Check {
    let check = |status, found: String| Check::new("directory", ALWAYS, status, found);
    let path = match &machine.directory {
        Err(why) => return check(Missing, why.clone()).advice("give --dir DIR, or set XDG_RUNTIME_DIR"),
        Ok(path) => path,
    };
    let shown = path.display();
    let other = "choose another directory with --dir";
    match fs::symlink_metadata(machine.place(path)) {
        Err(_) => {
            let parent = path.ancestors().skip(1).map(|parent| machine.place(parent)).find(|parent| parent.exists());
            let may_make = parent.is_some_and(|parent| access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok());
            if may_make {
                return check(Works, format!("a server would make {shown}"));
            }
            check(Missing, format!("{shown} does not exist, and this user may not make it")).advice(other)
        }
        Ok(found) if !found.is_dir() => {
            check(Missing, format!("{shown} is not a directory, or is a symbolic link")).advice(other)
        }
        Ok(found) if machine.user().is_some_and(|user| user != found.uid()) => {
            let found = format!("{shown} belongs to user {}", found.uid());
            check(Missing, found).advice(format!("run this as that user, or {other}"))
        }
        Ok(found) if found.mode() & 0o022 != 0 => {
            let found = format!("other users can write to {shown}");
            check(Missing, found).advice(format!("run 'chmod go-w {shown}', or {other}"))
        }
        Ok(_) => check(Works, format!("{shown} can be used")),
    }
}

fn memory(machine: &Machine) -> Check {
    let Some(memory) = Memory::under(&machine.root) else {
        let advice = "give --memory-limit";
        return Check::new("memory", ALWAYS, Limited, "the system does not say how much there is").advice(advice);
    };
    let half = size::written(memory.half_bytes());
    let found = format!("{memory}: disks get {half} unless --memory-limit is given");
    if memory.half_bytes() >= LITTLE_BYTES {
        return Check::new("memory", ALWAYS, Works, found);
    }
    let advice = "raise the control group's limit (MemoryMax=, docker run --memory), or expect ENOSPC early";
    Check::new("memory", ALWAYS, Limited, found).advice(advice)
}

fn overcommit(machine: &Machine) -> Check {
    if machine.read("proc/sys/vm/overcommit_memory").as_deref() != Some("2") {
        return Check::new("overcommit", ALWAYS, Works, "the system charges memory when it is used");
    }
    let meminfo = machine.read("proc/meminfo").unwrap_or_default();
    let value = |name: &str| meminfo_bytes(&meminfo, name);
    let left = value("CommitLimit").zip(value("Committed_AS")).map(|(most, now)| most.saturating_sub(now));
    let left = left.map_or_else(String::new, |left| format!(", of which {} are left", size::show(left)));
    let found = format!("vm.overcommit_memory is 2: the system charges memory when a program enables it{left}");
    let advice = "keep --memory-limit well below that, or set vm.overcommit_memory to 0 or 1";
    Check::new("overcommit", ALWAYS, Limited, found).advice(advice)
}

fn address_space(machine: &Machine) -> Check {
    match machine.limit("Max address space") {
        None => Check::new("address-space", ALWAYS, Works, "not limited"),
        Some(limit) => {
            let found =
                format!("limited to {}: a server reserves addresses for all that it may store", size::show(limit));
            Check::new("address-space", ALWAYS, Limited, found).advice("remove the limit (ulimit -v, LimitAS=)")
        }
    }
}

fn open_files(machine: &Machine) -> Check {
    let needed = needed_descriptors();
    match machine.most("Max open files") {
        Some(most) if most < needed => {
            let found = format!("at most {most}, and a server with its usual limits may need {needed}");
            let advice = "raise the limit (ulimit -Hn, LimitNOFILE=), or lower --max-connections";
            let status = if most < FEWEST_FILES { Missing } else { Limited };
            Check::new("open-files", ALWAYS, status, found).advice(advice)
        }
        most => {
            let most = most.map_or_else(|| "any number".to_owned(), |most| most.to_string());
            Check::new("open-files", ALWAYS, Works, format!("at most {most}; a server may need {needed}"))
        }
    }
}

fn locked_memory(machine: &Machine) -> Check {
    let check = |status, found: String| Check::new("locked-memory", "serve --swap", status, found);
    if let Some((major, minor)) = machine.linux().filter(|version| *version < crate::serve::LEAST_LINUX_FOR_SWAP) {
        let (least, after) = crate::serve::LEAST_LINUX_FOR_SWAP;
        return check(Missing, format!("Linux {major}.{minor} does not free locked memory"))
            .advice(format!("use Linux {least}.{after} or newer"));
    }
    let most = machine.most("Max locked memory");
    if most.is_some() && !machine.has_capability(CAP_IPC_LOCK) {
        let most = most.map_or_else(String::new, size::show);
        return check(Missing, format!("this user may lock {most}, and a server must lock all of its memory"))
            .advice("ulimit -l unlimited, LimitMEMLOCK=infinity, or AmbientCapabilities=CAP_IPC_LOCK");
    }
    if !machine.has_capability(CAP_SYS_RESOURCE) {
        return check(Limited, "memory can be locked, but the out-of-memory killer may end the server".to_owned())
            .advice("AmbientCapabilities=CAP_SYS_RESOURCE, or run it as root");
    }
    check(Works, "memory can be locked, and the server can be protected from the out-of-memory killer".to_owned())
}

fn huge_pages(machine: &Machine) -> Check {
    let folder = Path::new("sys/kernel/mm/transparent_hugepage");
    let chosen = |file: &str| {
        let text = machine.read(&folder.join(file).to_string_lossy())?;
        let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'))?.0.to_owned();
        Some(format!("{file} is '{word}'"))
    };
    let found: Vec<_> = ["enabled", "shmem_enabled"].into_iter().filter_map(chosen).collect();
    let found = if found.is_empty() { "this kernel has none".to_owned() } else { found.join(", ") };
    Check::new("huge-pages", ALWAYS, Works, format!("{found}; a server asks the kernel for none"))
}
