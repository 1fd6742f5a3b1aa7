//! Checks that every machine makes the same objects, whatever the CPU's instructions, and on other
//! architectures (`scripts/aarch64`).

use crate::{NAMES, PAGE_SIZE, Page, by_name, memory_tests::PAGES, streams_of_every_build};

/// Pages that begin as one kind and end as another, cut at each sector boundary.
fn pages() -> impl Iterator<Item = Page> {
    PAGES.iter().flat_map(|front| {
        PAGES.iter().flat_map(move |back| {
            (512..PAGE_SIZE).step_by(512).map(move |cut| {
                let mut page = *back;
                page[..cut].copy_from_slice(&front[..cut]);
                page
            })
        })
    })
}

/// The FNV-1a hash of all objects; a page that does not shrink counts as an empty object.
///
/// A codec's sum changes if its format or its search for matches does. Trained codecs are not
/// tested here: training uses logarithms, which C libraries round differently.
const SUMS: &[(&str, u64)] = &[
    ("fold", 0x3279_5dda_1c31_a904),
    ("lz4", 0x684f_5db9_54b1_1c47),
    ("lz4dyn", 0x0d78_847f_f7d6_ae64),
    ("lz4hc", 0xf43b_5861_6c9c_df8f),
    ("lzo", 0x11ac_16f0_426b_9342),
    ("lzo-rle", 0xd011_468f_e22f_539b),
    ("deflate", 0x3a74_aa6b_e63e_65ec),
    ("842", 0x14ef_84e9_3838_2c13),
    ("pleat", 0x1add_9411_d832_3a73),
    ("zstd", 0x4e04_abb2_3ca1_dad0),
];

#[test]
fn every_build_makes_these_objects() {
    let mut wrong = String::new();
    for &name in NAMES.iter().filter(|name| !name.contains("LEVEL") && !name.ends_with("-dict")) {
        let expected = SUMS.iter().find(|(of, _)| *of == name).map(|(_, sum)| *sum);
        let codec = by_name(name).unwrap();
        for (build, mut stream) in streams_of_every_build(&*codec).unwrap().into_iter().enumerate() {
            let mut sum = 0xcbf2_9ce4_8422_2325_u64;
            let mut put = |byte: u8| sum = (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            let mut out = [0; PAGE_SIZE];
            for page in pages() {
                let len = stream.compress(&page, &mut out).unwrap_or(0);
                (len as u16).to_le_bytes().into_iter().for_each(&mut put);
                out[..len].iter().copied().for_each(&mut put);
            }
            if Some(sum) != expected {
                wrong += &format!("{name}, build {build}: {sum:#x}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "other objects than SUMS says:\n{wrong}");
}
