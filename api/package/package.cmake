# SPDX-License-Identifier: MIT
# What is installed, in four components that are packages of Debian: weft (the program, its manual and service), libweft0.3 (the
# library), libweft-dev (what programs are compiled with) and weft-cuda (the module, where it is built). `cpack -G DEB` makes them;
# `./dev packages` makes all files of a release and tries them. Nothing here names the folder that is installed to: it may be moved.
include(CMakePackageConfigHelpers)
set(library_package libweft${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(package_folder ${CMAKE_SOURCE_DIR}/api/package)
set(doc_folder ${CMAKE_INSTALL_DATAROOTDIR}/doc)

# Before anything is copied: `./dev build` builds the program alone, and half an installation would be left.
install(CODE "if(NOT EXISTS \"$<TARGET_FILE:weft_shared>\")
  message(FATAL_ERROR \"the library is not built yet, and nothing was installed: cmake --build ${CMAKE_BINARY_DIR} builds all that is installed\")
endif()" COMPONENT library)

# weft
install(TARGETS weft RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT weft)
install(FILES model/demo/weft-demo.gguf model/demo/weft-demo-ar.gguf DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/weft/demo COMPONENT weft)
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/ DESTINATION ${CMAKE_INSTALL_DATAROOTDIR} COMPONENT weft OPTIONAL)
file(GLOB pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/*.md)
install(FILES README.md CHANGELOG.md DESTINATION ${doc_folder}/weft COMPONENT weft)
install(FILES ${pages} DESTINATION ${doc_folder}/weft/docs COMPONENT weft)
install(FILES docs/examples/grafana.json docs/examples/otel-collector.yaml DESTINATION ${doc_folder}/weft/docs/examples COMPONENT weft)
install(DIRECTORY docs/examples/kubernetes DESTINATION ${doc_folder}/weft/docs/examples COMPONENT weft)
install(FILES docs/examples/ray_serve/weft_serve.py DESTINATION ${doc_folder}/weft/docs/examples/ray_serve COMPONENT weft)
# The service and its configuration name each other and the program, so they are written when the folder is known. A configuration that
# is there is somebody's, and stays.
install(CODE "set(bin \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
set(share \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATAROOTDIR}\")
set(etc \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_SYSCONFDIR}/weft\")
configure_file(\"${package_folder}/weft.service.in\" \"${CMAKE_BINARY_DIR}/weft.service\" @ONLY)
configure_file(\"${package_folder}/weft.conf.in\" \"${CMAKE_BINARY_DIR}/weft.conf\" @ONLY)
file(INSTALL \"${CMAKE_BINARY_DIR}/weft.service\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/systemd/system\")
if(NOT EXISTS \"\$ENV{DESTDIR}\${etc}/weft.conf\")
  file(INSTALL \"${CMAKE_BINARY_DIR}/weft.conf\" DESTINATION \"\${etc}\")
endif()" COMPONENT weft)

# libweft0.3
install(TARGETS weft_shared EXPORT weftTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${CMAKE_INSTALL_INCLUDEDIR}/weft)

# libweft-dev. A header includes others of the tree by their path from its root; an installed one by their path from itself, so that
# <weft/weft.h> needs no folder but the one that compilers look into anyway.
foreach(header api/weft.h base/asked.h base/prompt.h base/sampling.h)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${header})
  file(READ ${CMAKE_SOURCE_DIR}/${header} text)
  if(header MATCHES "^base/")
    string(REPLACE "#include \"base/" "#include \"" text "${text}")
  endif()
  string(REGEX REPLACE "^api/" "" header ${header})
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/include/weft/${header} CONTENT "${text}")
endforeach()
install(DIRECTORY ${CMAKE_BINARY_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(FILES docs/examples/generate.c DESTINATION ${doc_folder}/libweft-dev/examples COMPONENT development)
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
configure_file(${package_folder}/weft.pc.in weft.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
install(EXPORT weftTargets NAMESPACE weft:: DESTINATION ${config_folder} COMPONENT development)
configure_package_config_file(${package_folder}/weftConfig.cmake.in weftConfig.cmake INSTALL_DESTINATION ${config_folder})
write_basic_package_version_file(weftConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/weftConfig.cmake ${CMAKE_BINARY_DIR}/weftConfigVersion.cmake
  DESTINATION ${config_folder} COMPONENT development)

# weft-cuda: a module serves the version that it was built with and no other, so its folder has the version in its name.
set(components weft library development)
if(WEFT_CUDA)
  install(TARGETS ${cuda_modules} LIBRARY DESTINATION ${WEFT_MODULE_DIR} COMPONENT cuda)
  list(APPEND components cuda)
endif()

# The licence in each.
set(package_weft weft)
set(package_library ${library_package})
set(package_development libweft-dev)
set(package_cuda weft-cuda)
foreach(component ${components})
  install(FILES LICENSE DESTINATION ${doc_folder}/${package_${component}} RENAME copyright COMPONENT ${component})
endforeach()

# Packages of Debian.
set(CPACK_PACKAGE_NAME weft)
set(CPACK_PACKAGE_VENDOR weft)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "server for language models, autoregressive and text-diffusion ones")
set(CPACK_PACKAGE_CONTACT "the weft developers <weft@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL ${components})
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${package_folder}/debian.cmake)
set(CPACK_POST_BUILD_SCRIPTS ${package_folder}/debian.cmake)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE none) # debian.cmake writes them again
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR})
foreach(component ${components})
  string(TOUPPER ${component} name)
  set(CPACK_DEBIAN_${name}_PACKAGE_NAME ${package_${component}})
  set(CPACK_DEBIAN_${name}_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_${name}_PACKAGE_SECTION misc)
endforeach()
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${library_package} (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "weft (= ${PROJECT_VERSION}) | ${library_package} (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_WEFT_DESCRIPTION "Serves GGUF files to many tenants from one paged pool of KV memory and
 one loop of continuous batching, as OpenAI, Anthropic and Ollama do. With
 the program come two small demo models, its manual and a service.")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "The library: what weft serves with, for programs in C.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "What programs with the library are compiled with: weft.h, weft.pc and the
 package of CMake.")
set(CPACK_COMPONENT_CUDA_DESCRIPTION "NVIDIA cards: the module that weft opens where a driver is.")
configure_file(${package_folder}/shlibs.in shlibs @ONLY)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/shlibs ${package_folder}/triggers)
set(CPACK_DEBIAN_WEFT_PACKAGE_CONTROL_EXTRA ${package_folder}/conffiles ${package_folder}/postinst ${package_folder}/prerm
    ${package_folder}/postrm)
include(CPack)
