//! OpenZL without training: treats a page as bytes, with the generic graph, or as 64-bit numbers,
//! with the graph for numbers.
#![allow(unsafe_code)] // Calls of a C library.

use std::ptr::NonNull;

use anyhow::{Context, ensure};
use openzl_sys::*;
use pagefold_codec::{Corrupt, PAGE_SIZE, Page, Stream};

/// How to interpret a page.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum As {
    Bytes,
    Numbers,
}

/// `ZL_CCtx_compress` at level 1 and `ZL_DCtx_decompress`, with reused contexts and without
/// checksums.
pub(super) struct OpenZl {
    graphs: NonNull<ZL_Compressor>,
    compressor: NonNull<ZL_CCtx>,
    decompressor: NonNull<ZL_DCtx>,
}

// SAFETY: the library's objects are not tied to a thread, and no other pointer to these exists.
unsafe impl Send for OpenZl {}

/// Returns the value of a report, or `None` if it is an error.
fn value(report: ZL_Report) -> Option<usize> {
    // SAFETY: both functions only read the report.
    unsafe { (ZL_isError(report) == 0).then(|| ZL_validResult(report)) }
}

impl OpenZl {
    pub(super) fn new(page: As) -> anyhow::Result<Self> {
        // SAFETY: the objects are created here and freed on drop.
        let made = unsafe { (ZL_Compressor_create(), ZL_CCtx_create(), ZL_DCtx_create()) };
        let (Some(graphs), Some(compressor), Some(decompressor)) =
            (NonNull::new(made.0), NonNull::new(made.1), NonNull::new(made.2))
        else {
            anyhow::bail!("OpenZL is out of memory");
        };
        let this = Self { graphs, compressor, decompressor };
        let parameters = [
            (ZL_CParam_formatVersion, ZL_MAX_FORMAT_VERSION),
            (ZL_CParam_compressionLevel, 1),
            (ZL_CParam_compressedChecksum, ZL_TernaryParam_disable),
            (ZL_CParam_contentChecksum, ZL_TernaryParam_disable),
        ];
        let graphs = graphs.as_ptr();
        // SAFETY: all objects are alive, and the compressor does not outlive the graphs it refers
        // to.
        unsafe {
            let mut graph = ZL_GraphID { gid: ZL_StandardGraphID_compress_generic };
            if page == As::Numbers {
                let numbers = ZL_NodeID { nid: ZL_StandardNodeID_convert_serial_to_num_le64 };
                let coded = ZL_GraphID { gid: ZL_StandardGraphID_select_numeric };
                graph = ZL_Compressor_registerStaticGraph_fromNode1o(graphs, numbers, coded);
            }
            for (parameter, value_of) in parameters {
                let set = ZL_Compressor_setParameter(graphs, parameter, value_of.try_into()?);
                ensure!(value(set).is_some(), "OpenZL refuses parameter {parameter}");
            }
            value(ZL_Compressor_selectStartingGraphID(graphs, graph)).context("OpenZL refuses its graph")?;
            let compressor = compressor.as_ptr();
            value(ZL_CCtx_setParameter(compressor, ZL_CParam_stickyParameters, 1)).context("OpenZL forgets")?;
            value(ZL_CCtx_refCompressor(compressor, graphs)).context("OpenZL refuses its graphs")?;
        }
        Ok(this)
    }
}

impl Stream for OpenZl {
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        let (to, room) = (out.as_mut_ptr().cast(), out.len());
        // SAFETY: it writes at most `room` bytes and reads one page.
        value(unsafe { ZL_CCtx_compress(self.compressor.as_ptr(), to, room, page.as_ptr().cast(), PAGE_SIZE) })
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        let (from, len) = (object.as_ptr().cast(), object.len());
        let to = page.as_mut_ptr().cast();
        // SAFETY: it writes at most one page and reads `len` bytes.
        let decoded = unsafe { ZL_DCtx_decompress(self.decompressor.as_ptr(), to, PAGE_SIZE, from, len) };
        super::exactly_a_page(value(decoded).ok_or(()))
    }

    /// OpenZL does not report it.
    fn memory_bytes(&self) -> usize {
        0
    }
}

impl Drop for OpenZl {
    fn drop(&mut self) {
        // SAFETY: `new` created them, and they are not used again.
        unsafe {
            ZL_DCtx_free(self.decompressor.as_ptr());
            ZL_CCtx_free(self.compressor.as_ptr());
            ZL_Compressor_free(self.graphs.as_ptr());
        }
    }
}
