// Memory that this process has mapped itself becomes memory of the device. A C interface beside
// that of CUDA's driver.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// `bytes` bytes of `file`, which must stay open, are mapped at `address`, where programs have
/// them, and at `view`, where copies find them.
void fake_cuda_adopt(void* address, void* view, uint64_t bytes, int file);

#ifdef __cplusplus
}
#endif
