// A copy between memory that another process has just written or will read next.
#pragma once

#include <cstddef>

namespace q7x2 {

/// memcpy with plain vector loads and stores at every length. The C library's takes `rep movsb`
/// from 2 KiB on, which is slower for what is not in this core's cache yet, and far slower where
/// source and destination lie at unlucky distances (glibc bug 30994), as page-aligned segments may.
void copy_bytes(void* destination, const void* source, size_t bytes);

}  // namespace q7x2
