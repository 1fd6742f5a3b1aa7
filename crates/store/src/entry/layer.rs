//! The number of a layer: what a disk writes between two forks.

/// The number of a layer. Once the layer is gone, another layer may get its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerId(u32);

impl LayerId {
    #[inline]
    pub(crate) fn of(number: u32) -> Self {
        Self(number)
    }

    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}
