// A mark for loops: no iteration depends on another one, so the compiler may combine several.
#pragma once

#if defined(__clang__)
#define Q7X2_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define Q7X2_INDEPENDENT _Pragma("GCC ivdep")
#endif
