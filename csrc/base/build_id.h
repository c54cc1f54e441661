// The identifier of this build of q7x2: ranks with different ones may be incompatible.
#pragma once

#include <string>

namespace q7x2 {

/// The version and a digest of all C++ sources, "0.1.0a1+4f9c21ab04d7". Equal for two builds of the
/// same sources, even with different compilers, processors or versions of torch.
std::string build_id();

}  // namespace q7x2
