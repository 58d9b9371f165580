#pragma once
/// Which names a runtime's `traffic` and `kept` may hold. A misspelt one would change nothing, silently: it is refused.

#include <string>

#include "core/spec/runtime.hpp"

namespace moeplan {

/// Throws InputError naming the entry and what it may have meant. Known are the operators of the catalogue and what programs, memory, prices
/// and validation ask for by name.
void check_names(const Runtime& runtime);

}  // namespace moeplan
