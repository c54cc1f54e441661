// What the stand-in's copy engines did in this process. A C interface beside that of CUDA's driver.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Numbers of copies and their bytes since the process began, or was forked.
struct FakeCudaCopies {
  uint64_t to_device, bytes_to_device;  ///< from the host
  uint64_t to_host, bytes_to_host;
  uint64_t on_device, bytes_on_device;  ///< within memory of this process
  uint64_t peer, bytes_peer;            ///< from or to memory of another process
};

void fake_cuda_copies(struct FakeCudaCopies* copies);

#ifdef __cplusplus
}
#endif
