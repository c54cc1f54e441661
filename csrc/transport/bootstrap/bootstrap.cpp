#include "transport/bootstrap/bootstrap.h"

#include <string_view>

namespace q7x2 {
namespace {

constexpr const char* kCannot = " could not make the group '";

}  // namespace

std::string cannot_make(int rank, int size, const std::string& group) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size) + kCannot + group + "'";
}

Error titled(const Error& error, const std::string& title, int rank) {
  const std::string_view text = error.what();
  if (text.find(kCannot) != std::string_view::npos) return error;
  return {error.code(), title + ": " + std::string(text), rank};
}

Error aborted_by(const std::exception& exception, int rank) {
  const std::string text = exception.what();
  return {ErrorCode::kAborted, text.substr(0, text.find('\n')), rank};
}

}  // namespace q7x2
