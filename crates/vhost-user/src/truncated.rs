//! Protects mappings of files that others own and may shorten.
//!
//! Accessing a mapped page past its file's end raises SIGBUS, which by default ends the process.
//! Files are [sealed](rustix::fs::SealFlags::SHRINK) if possible. Mappings of other files are
//! listed here. If a file is shortened, a handler replaces its mapping by zeros, so its owner harms
//! only itself. SIGBUS at any other address goes to the handler that was there before.
#![allow(unsafe_code)]

use std::{
    io,
    mem::MaybeUninit,
    ptr,
    sync::{
        OnceLock,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
};

use libc::{c_int, c_void, siginfo_t};

/// Mappings that can be listed. Further files must be sealed.
const PLACES: usize = 4096;

/// The listed mappings. A place is free while its length is 0, and being filled or freed while its
/// length is [`BUSY`].
static LISTED: [Place; PLACES] = [const { Place::free() }; PLACES];

/// A length that no mapping has.
const BUSY: usize = usize::MAX;

/// The handler that was there before; set before the first mapping is listed.
static BEFORE: OnceLock<Action> = OnceLock::new();

struct Place {
    start: AtomicUsize,
    len: AtomicUsize,
    /// Whether the mapping has lost its file.
    is_lost: AtomicBool,
}

impl Place {
    const fn free() -> Self {
        Self { start: AtomicUsize::new(0), len: AtomicUsize::new(0), is_lost: AtomicBool::new(false) }
    }
}

struct Action(libc::sigaction);

// SAFETY: the pointers in it are addresses of functions.
unsafe impl Send for Action {}
// SAFETY: as above.
unsafe impl Sync for Action {}

/// A listed mapping. It must be dropped before the mapping.
#[derive(Debug)]
pub(crate) struct Listed(usize);

impl Listed {
    /// Lists a mapping that the caller keeps until the result is dropped.
    ///
    /// # Errors
    /// Too many are listed, or the handler cannot be installed.
    pub(crate) fn new(start: *const u8, len: usize) -> io::Result<Self> {
        install()?;
        let free = |place: &Place| place.len.compare_exchange(0, BUSY, AcqRel, Relaxed).is_ok();
        let number =
            LISTED.iter().position(free).ok_or_else(|| io::Error::other("too many mappings of guests' memory"))?;
        LISTED[number].start.store(start.addr(), Relaxed);
        LISTED[number].is_lost.store(false, Relaxed);
        LISTED[number].len.store(len, Release);
        Ok(Self(number))
    }

    /// Returns whether the mapping has lost its file, and reads as zeros.
    pub(crate) fn is_lost(&self) -> bool {
        LISTED[self.0].is_lost.load(Relaxed)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        LISTED[self.0].len.store(0, Release);
    }
}

/// Installs the handler, once for the process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let install = || {
        let mut before = MaybeUninit::zeroed();
        // SAFETY: the result of a null action is only the current action, written to `before`.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
        // SAFETY: the call has written it.
        let _ = BEFORE.set(Action(unsafe { before.assume_init() }));
        // SAFETY: zeros are a valid value of this C structure.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = handle as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the type that SA_SIGINFO asks for, and calls only what a signal
        // handler may call.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
        Ok(())
    };
    INSTALLED.get_or_init(install).map_err(io::Error::from_raw_os_error)
}

/// Handles SIGBUS: it makes only system calls, and keeps errno.
extern "C" fn handle(_: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid structure, whose address is set for SIGBUS.
    let address = unsafe { (*info).si_addr() }.addr();
    // SAFETY: errno of this thread always exists.
    let errno = unsafe { *libc::__errno_location() };
    if !replace(address)
        && let Some(before) = BEFORE.get()
    {
        // The access is repeated, and the former handler gets the signal.
        // SAFETY: it is the action that the system returned.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const before.0, ptr::null_mut()) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Replaces the listed mapping that contains this address by zeros. Returns whether there is one.
fn replace(address: usize) -> bool {
    for place in &LISTED {
        let (len, start) = (place.len.load(Acquire), place.start.load(Relaxed));
        if len == 0 || len == BUSY || !(start..start.saturating_add(len)).contains(&address) {
            continue;
        }
        place.is_lost.store(true, Relaxed);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the range is a whole mapping of memory that is accessed only through volatile slices.
        // Its owner keeps it while it is listed, and this thread is accessing it.
        let mapped = unsafe {
            let kind = kind | libc::MAP_FIXED | libc::MAP_NORESERVE;
            libc::mmap(ptr::with_exposed_provenance_mut(start), len, access, kind, -1, 0)
        };
        return mapped != libc::MAP_FAILED;
    }
    false
}
