// StreamCalls: functions of a device's streams that c10 does not have.
//
// A C interface without any other header, so that the extension of an accelerator can implement it.
// Every function returns 0, or the number of its error.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// `stream` is the result of c10::Stream::native_handle. All functions may be called in any thread.
struct Q7x2StreamCalls {
  /// Size of this struct in bytes: a later version is longer.
  uint64_t size;
  /// Stops the stream until the word at `flag` has reached `value`: until (int32_t)(*flag - value)
  /// >= 0. `flag` is in pinned host memory, and the host writes it.
  int (*wait_value)(void* stream, const uint32_t* flag, uint32_t value);
  /// Calls call(argument) once, in a thread of the host, when the stream has done all earlier work.
  /// The call takes microseconds and calls no function of the device.
  int (*call_host)(void* stream, void (*call)(void* argument), void* argument);
  /// *answer: whether the stream records its work for a graph instead of executing it.
  int (*is_capturing)(void* stream, int* answer);
};

#ifdef __cplusplus
}
#endif
