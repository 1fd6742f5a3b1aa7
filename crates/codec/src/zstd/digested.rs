//! A dictionary that libzstd has digested once, and the context that compresses with one such or
//! another.
#![allow(unsafe_code)] // What refers to a dictionary lies beside it.

use std::{fmt, sync::Arc};

use zstd_safe::{CCtx, CDict, CParameter, DDict, ResetDirective, SafeResult};

use crate::{Dictionary, Page};

/// A dictionary, digested both ways.
pub(super) struct Digested {
    // Before what they refer to.
    for_compression: CDict<'static>,
    for_decompression: DDict<'static>,
    dictionary: Dictionary,
}

impl Digested {
    /// `None`: libzstd has no memory, or the dictionary begins as one of libzstd's and is none.
    pub(super) fn new(level: i32, dictionary: Dictionary) -> Option<Self> {
        // SAFETY: the bytes lie on the heap, are never changed, and are freed after both that refer
        // to them: these do not leave `self`, and stand before the dictionary in it.
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

/// A context of libzstd, and the dictionary that it refers to.
pub(super) struct Compressor {
    // Before what it refers to.
    context: CCtx<'static>,
    digested: Option<Arc<Digested>>,
}

impl Compressor {
    /// Without a dictionary; `None`: no memory.
    pub(super) fn new() -> Option<Self> {
        Some(Self { context: CCtx::try_create()?, digested: None })
    }

    pub(super) fn set_parameter(&mut self, parameter: CParameter) -> SafeResult {
        self.context.set_parameter(parameter)
    }

    /// Compresses `page` with the dictionary `digested`, or without one. `None`: it does not fit
    /// `out`.
    pub(super) fn compress(&mut self, digested: Option<&Arc<Digested>>, page: &Page, out: &mut [u8]) -> Option<usize> {
        if self.digested.as_ref().map(Arc::as_ptr) != digested.map(Arc::as_ptr) {
            self.refer(digested)?;
        }
        self.context.compress2(out, page.as_slice()).ok()
    }

    /// Compresses with `digested` from now on. `None`: libzstd refuses, and the context refers to
    /// what it did.
    #[cold]
    pub(super) fn refer(&mut self, digested: Option<&Arc<Digested>>) -> Option<()> {
        // A page that did not fit has left a frame unfinished, in which nothing may be changed.
        self.context.reset(ResetDirective::SessionOnly).ok()?;
        match digested {
            Some(digested) => {
                // SAFETY: the context refers to it until it refers to something else or is dropped,
                // and until after that `self.digested` keeps it, where it is.
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
