// TCP's congestion control.
#pragma once

#include <string>

namespace q7x2 {

/// False: the kernel does not have this congestion control, or forbids it; errno says which.
bool set_congestion(int socket, const std::string& name);

}  // namespace q7x2
