// The codec kernels of the stand-in accelerator: those of CUDA, run as fibres in a stream's thread.
#pragma once

namespace accelerator {

/// A q7x2::CodecKernels.
const void* codec_kernels();

}  // namespace accelerator
