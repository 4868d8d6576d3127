//! Location placeholder
