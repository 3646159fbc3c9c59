//! stub
use super::*;
