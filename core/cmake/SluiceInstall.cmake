# Installation: headers, libraries, programs, find_package(sluice) and pkg-config.
#
# The package's components are the modules: core, topology, dispatch, and softrdma where it is built. Their
# dependencies are not listed again here: they are read from the targets' link interfaces.
include(CMakePackageConfigHelpers)

set(sluice_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)

# sluice_dependency(TARGET name): how a consumer finds an imported target of ours.
#   sluice_find   the line for the package's config file
#   sluice_pc     its pkg-config module, or nothing if there is none to ask for
function(sluice_dependency target)
  set(find)
  set(pc)
  if(target MATCHES "^PkgConfig::(.+)$")
    # pkg_check_modules() keeps what it was asked for.
    set(prefix ${CMAKE_MATCH_1})
    set(modules ${__pkg_config_arguments_${prefix}})
    list(FILTER modules EXCLUDE REGEX "^(REQUIRED|QUIET|IMPORTED_TARGET|GLOBAL|NO_CMAKE_.*)$")
    if(NOT modules)
      message(FATAL_ERROR "no pkg_check_modules(${prefix} ...) has been seen for ${target}")
    endif()
    string(REPLACE ";" " " words "${modules}")
    set(find "find_dependency(PkgConfig)\nif(NOT TARGET ${target})\n"
        "  pkg_check_modules(${prefix} QUIET IMPORTED_TARGET ${words})\n"
        "  if(NOT ${prefix}_FOUND)\n    set(sluice_FOUND FALSE)\n"
        "    set(sluice_NOT_FOUND_MESSAGE \"sluice needs ${words}, which pkg-config does not find\")\n"
        "    return()\n  endif()\nendif()")
    string(JOIN "" find ${find})
    string(REGEX REPLACE "([<>=]+)" " \\1 " pc "${modules}")
  elseif(target STREQUAL "Threads::Threads")
    set(find "find_dependency(Threads)")
  elseif(target MATCHES "^TBB::")
    set(find "find_dependency(TBB)")
    set(pc tbb)
  elseif(target MATCHES "^spdlog::")
    set(find "find_dependency(spdlog)")
    set(pc spdlog)
  elseif(target MATCHES "^fmt::")
    set(find "find_dependency(fmt)")
    set(pc fmt)
  elseif(target MATCHES "^CLI11::")
    set(find "find_dependency(CLI11)")
  elseif(target MATCHES "^nlohmann_json::")
    set(find "find_dependency(nlohmann_json)")
  elseif(target MATCHES "^OpenSSL::")
    set(find "find_dependency(OpenSSL)")
    set(pc openssl)
  else()
    message(FATAL_ERROR "SluiceInstall.cmake: how does a consumer find ${target}?")
  endif()
  set(sluice_find "${find}" PARENT_SCOPE)
  set(sluice_pc "${pc}" PARENT_SCOPE)
endfunction()

set(sluice_components)
set(sluice_requires)
set(sluice_config_blocks)
foreach(component core topology dispatch softrdma)
  set(library sluice_${component})
  if(component STREQUAL softrdma)
    set(library softrdma)
  endif()
  if(NOT TARGET ${library})
    continue()
  endif()
  list(APPEND sluice_components ${component})

  set(block)
  set(needs)
  get_target_property(links ${library} INTERFACE_LINK_LIBRARIES)
  foreach(link IN LISTS links)
    # A static library's private dependency is $<LINK_ONLY:x>; $<BUILD_INTERFACE:x> is nobody else's business.
    if(link MATCHES "^\\$<LINK_ONLY:([^$<>]+)>$")
      set(link ${CMAKE_MATCH_1})
    endif()
    if(link MATCHES "^sluice(::|_)(.+)$")
      list(APPEND needs ${CMAKE_MATCH_2})
    elseif(link MATCHES "::" AND NOT link MATCHES "BUILD_INTERFACE")
      sluice_dependency(${link})
      string(APPEND block "${sluice_find}\n")
      if(NOT component STREQUAL softrdma)
        list(APPEND sluice_requires ${sluice_pc})
      endif()
    endif()
  endforeach()
  set(sluice_needs_${component} ${needs})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/package/sluice-${component}-dependencies.cmake CONTENT "${block}" @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/package/sluice-${component}-dependencies.cmake
          DESTINATION ${sluice_package_dir})

  install(TARGETS ${library} EXPORT sluice-${component}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT sluice-${component} NAMESPACE sluice:: DESTINATION ${sluice_package_dir}
          FILE sluice-${component}-targets.cmake)
  if(IS_DIRECTORY ${CMAKE_SOURCE_DIR}/${component}/include)
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/${component}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
            FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
  endif()
endforeach()
if(TARGET softrdma AND IS_DIRECTORY ${CMAKE_SOURCE_DIR}/core/softrdma/include)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/core/softrdma/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          FILES_MATCHING PATTERN "*.h")
endif()

foreach(tool sluice-plan sluice-top)
  if(TARGET ${tool})
    install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endforeach()
if(TARGET softrdma-run)
  install(PROGRAMS ${CMAKE_BINARY_DIR}/bin/softrdma-run DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(sluice_needs)
foreach(component IN LISTS sluice_components)
  string(REPLACE ";" " " needs "${sluice_needs_${component}}")
  string(APPEND sluice_needs "set(sluice_needs_${component} ${needs})\n")
endforeach()
string(REPLACE ";" " " sluice_component_words "${sluice_components}")
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/sluice-config.cmake.in
                              ${CMAKE_BINARY_DIR}/package/sluice-config.cmake
                              INSTALL_DESTINATION ${sluice_package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/sluice-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
list(REMOVE_DUPLICATES sluice_requires)
string(REPLACE ";" ", " sluice_requires "${sluice_requires}")
# Where the prefix is, seen from the file itself: an installed tree can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(sluice_pc_prefix ${CMAKE_INSTALL_PREFIX})
  set(sluice_pc_libdir ${CMAKE_INSTALL_LIBDIR})
else()
  file(RELATIVE_PATH sluice_pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  set(sluice_pc_prefix "\${pcfiledir}/${sluice_pc_prefix}")
  set(sluice_pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
set(sluice_pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(sluice_pc_includedir ${CMAKE_INSTALL_INCLUDEDIR})
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/sluice.pc.in ${CMAKE_BINARY_DIR}/package/sluice.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/sluice-config.cmake
              ${CMAKE_BINARY_DIR}/package/sluice-config-version.cmake
        DESTINATION ${sluice_package_dir})
install(FILES ${CMAKE_BINARY_DIR}/package/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
