// SPDX-License-Identifier: BSD-3-Clause
#include "parking_definitions.hpp"

namespace sluice {

template class BasicParkingLot<NoHooks>;

}  // namespace sluice
