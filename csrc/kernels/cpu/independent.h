// A mark for loops: no iteration depends on another one, so the compiler may take several at once.
#pragma once

#if defined(__clang__)
#define Q7X2_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define Q7X2_INDEPENDENT _Pragma("GCC ivdep")
#endif
