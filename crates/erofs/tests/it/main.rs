//! Images tested against other implementations and with invalid bytes.

mod archives;
mod built;
mod choices;
mod chunks;
mod comparing;
mod corpus;
mod extracting;
mod generated;
mod holes;
mod hostile;
mod interoperation;
mod layers;
mod long_paths;
mod matrix;
mod mkfs;
mod modern;
mod overlaps;
mod overlay;
mod prefixes;
mod reading;
mod regressions;
mod sizes;
mod sparse;
mod tools;
mod trees;
mod xattrs;
