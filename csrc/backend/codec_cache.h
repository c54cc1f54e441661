// CodecCache: the codecs in use, by the names that callers give them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backend/work.h"
#include "base/error.h"
#include "kernels/codec/codec.h"

namespace q7x2 {

/// Thread-safe.
class CodecCache {
 public:
  /// Throws c10::Error if there is no such codec.
  std::shared_ptr<const Codec> get(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (const auto found = codecs_.find(name); found != codecs_.end()) return found->second;
    try {
      return codecs_.emplace(name, Codec::make(name)).first->second;
    } catch (const Error& error) {
      std::rethrow_exception(to_exception(error));
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Codec>> codecs_;
};

}  // namespace q7x2
