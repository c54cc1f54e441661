// Copies memory that another process has just written or will read next.
#pragma once

#include <cstddef>

namespace q7x2 {

/// memcpy with plain vector loads and stores for every length. The C library's memcpy uses `rep
/// movsb` from 2 KiB on. That is slower for data that is not in this core's cache yet, and far
/// slower for some distances between source and destination (glibc bug 30994), which page-aligned
/// segments may have.
void copy_bytes(void* destination, const void* source, size_t bytes);

}  // namespace q7x2
