//! Randomness that can be repeated: everything is derived from a seed.
//!
//! The functions here are part of what is stored: `ctx.random()` and `ctx.uuid()` must give the
//! same values in every later version, so none of these constants may ever change.

/// A bijection of 64 bits that leaves no pattern (the finalizer of SplitMix64).
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stable hash of bytes: FNV-1a, finished by [`mix`].
pub(crate) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut h = 0xCBF2_9CE4_8422_2325 ^ mix(seed);
    for byte in bytes {
        h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    mix(h)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_never_change() {
        assert_eq!(mix(1), 0x5692_161D_100B_05E5);
        assert_eq!(hash(1, b"everstep"), hash(1, b"everstep"));
        assert_ne!(hash(1, b"everstep"), hash(2, b"everstep"));
    }
}
