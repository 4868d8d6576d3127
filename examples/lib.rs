//! Runnable examples of everstep; see each file.
