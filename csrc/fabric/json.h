// A Fabric as JSON: what the catalogue keeps, what ranks tell each other, what people read and
// edit. docs/fabric.md has the format, field by field.
//
// The text is canonical: fields in a fixed order, a host, rack, link or pair on a line, figures
// rounded to four digits. Two Fabrics are equal where their texts are.
#pragma once

#include <string>
#include <string_view>

#include "fabric/fabric.h"

namespace q7x2 {

/// Longer texts are refused, before they are read.
inline constexpr size_t kMaxFabricBytes = size_t{16} << 20;
/// The same of what one host or rank says.
inline constexpr size_t kMaxDescriptionBytes = size_t{1} << 20;
inline constexpr int kFabricFormat = 1;

std::string to_json(const Fabric& fabric);

/// The Fabric of a text that anybody may have written. Throws Error(kInvalidArgument), which names
/// the place: "hosts[3].egress: expected a number of at least 0, got -1".
Fabric fabric_from_json(std::string_view text);

/// What one host says of itself in a probe.
struct HostDescription {
  int cores = 1;  ///< hardware threads that its first rank may use
  Fabric::Hardware hardware;
  Fabric::Rates rates;
};
std::string to_json(const HostDescription& description);
/// Throws Error(kInvalidArgument), as fabric_from_json does.
HostDescription description_from_json(std::string_view text);

/// What one rank says of itself.
std::string to_json(const Fabric::Binding& binding);
/// Throws Error(kInvalidArgument), as fabric_from_json does.
Fabric::Binding binding_from_json(std::string_view text);

}  // namespace q7x2
