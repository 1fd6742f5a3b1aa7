//! A dictionary digested once by libzstd, and the compression context that uses such dictionaries.
#![allow(unsafe_code)] // Self-references: the digests refer to the dictionary next to them.

use std::{fmt, sync::Arc};

use zstd_safe::{CCtx, CDict, CParameter, DDict, ResetDirective, SafeResult};

use crate::{Dictionary, Page};

/// A dictionary, digested for both directions.
pub(super) struct Digested {
    // Declared before `dictionary`, to which both refer, so that they are dropped first.
    for_compression: CDict<'static>,
    for_decompression: DDict<'static>,
    dictionary: Dictionary,
}

impl Digested {
    /// Returns `None` if libzstd is out of memory, or if the content starts like a libzstd
    /// dictionary but is not a valid one.
    pub(super) fn new(level: i32, dictionary: Dictionary) -> Option<Self> {
        // SAFETY: the bytes are on the heap, never change, and are freed after both values that
        // refer to them: these do not leave `self` and are declared before the dictionary.
        let bytes: &'static [u8] = unsafe { &*std::ptr::from_ref(dictionary.bytes()) };
        Some(Self {
            for_compression: CDict::try_create_by_reference(bytes, level)?,
            for_decompression: DDict::try_create_by_reference(bytes)?,
            dictionary,
        })
    }

    pub(super) fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    pub(super) fn for_decompression(&self) -> &DDict<'_> {
        &self.for_decompression
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.dictionary.bytes().len()
            + self.for_compression.sizeof()
            + self.for_decompression.sizeof()
    }
}

impl fmt::Debug for Digested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digested").field("dictionary", &self.dictionary.id()).finish_non_exhaustive()
    }
}

/// A libzstd context and the dictionary that it refers to.
pub(super) struct Compressor {
    // Declared before what it refers to.
    context: CCtx<'static>,
    digested: Option<Arc<Digested>>,
}

impl Compressor {
    /// Creates a context without a dictionary. Returns `None` if there is no memory.
    pub(super) fn new() -> Option<Self> {
        Some(Self { context: CCtx::try_create()?, digested: None })
    }

    pub(super) fn set_parameter(&mut self, parameter: CParameter) -> SafeResult {
        self.context.set_parameter(parameter)
    }

    /// Compresses `page` with the dictionary `digested`, or without one. Returns `None` if it does
    /// not fit in `out`.
    pub(super) fn compress(&mut self, digested: Option<&Arc<Digested>>, page: &Page, out: &mut [u8]) -> Option<usize> {
        if self.digested.as_ref().map(Arc::as_ptr) != digested.map(Arc::as_ptr) {
            self.refer(digested)?;
        }
        self.context.compress2(out, page.as_slice()).ok()
    }

    /// Compresses with `digested` from now on. Returns `None` if libzstd refuses; the context then
    /// keeps its previous dictionary.
    #[cold]
    pub(super) fn refer(&mut self, digested: Option<&Arc<Digested>>) -> Option<()> {
        // A page that did not fit left a frame unfinished, during which nothing may change.
        self.context.reset(ResetDirective::SessionOnly).ok()?;
        match digested {
            Some(digested) => {
                // SAFETY: the context refers to it until it refers to another or is dropped; until
                // after that `self.digested` keeps it alive and in place.
                let dictionary: &'static CDict<'static> = unsafe { &*std::ptr::from_ref(&digested.for_compression) };
                self.context.ref_cdict(dictionary).ok()?;
            }
            None => {
                self.context.disable_dictionary().ok()?;
            }
        }
        self.digested = digested.cloned();
        Some(())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.context.sizeof()
    }
}
