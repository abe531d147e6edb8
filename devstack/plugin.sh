# SPDX-License-Identifier: Apache-2.0
# plugin.sh - the nova-hpc plug-in of devstack
#
# Installs the project beside Nova, derives the node's settings from its
# inventory and merges them into Nova's and Placement's configuration.

_XTRACE_NOVA_HPC=$(set +o | grep xtrace)
set +o xtrace

# Options that may be given several times: what others have set stays before ours.
NOVA_HPC_SEVERAL="alias available_filters device_role device_spec"

# Merge the options of an include file into a service's configuration.
#
# What other plug-ins have set is added to: lines of an option that may be given
# several times go below theirs, and a limit never falls. Lists come whole from
# nova-hpc configure, which has read theirs. iniset_multiline splits values at
# blanks, which the JSON of PCI options contains, so lines are added one by one.
#
#   nova_hpc_merge INCLUDE_FILE CONF_FILE
function nova_hpc_merge {
    local include=$1 conf=$2
    local section option line before
    local -a lines=() options=() there=()
    local i
    for section in $(iniget_sections $include); do
        # Only the assignments of this section, comments and blanks left out.
        mapfile -t lines < <(sed -n -e "/^\[$section\]/,/^\[/ { /^[a-z_]* *=/ p; }" $include)
        if ! grep -q "^\[$section\]" $conf; then
            printf '\n[%s]\n' $section | sudo tee -a $conf > /dev/null
        fi
        mapfile -t options < <(printf '%s\n' "${lines[@]}" | sed -e 's/ *=.*//' | uniq)
        for option in "${options[@]}"; do
            mapfile -t there < <(sed -n -e "/^\[$section\]/,/^\[/ { s/^$option[ \t]*=[ \t]*//p; }" $conf)
            if [[ " $NOVA_HPC_SEVERAL " != *" $option "* ]]; then
                before=${there[*]: -1}
                there=()
                if [[ $option == max_* && $before =~ ^-?[0-9]+$ ]]; then
                    line=$(iniget $include $section $option)
                    # A negative limit is none.
                    if (( before < 0 || before > line )); then
                        continue
                    fi
                fi
            fi
            for line in "${lines[@]}"; do
                if [[ ${line%% =*} == "$option" ]]; then
                    line=${line#*= }
                    for before in "${there[@]}"; do
                        if [[ $before == "$line" ]]; then
                            continue 2
                        fi
                    done
                    there+=("$line")
                fi
            done
            inidelete $conf $section $option
            # iniadd_literal puts a line right below the section's head.
            for (( i = ${#there[@]} - 1; i >= 0; i-- )); do
                iniadd_literal $conf $section $option "${there[i]}"
            done
        done
    done
}

function nova_hpc_install {
    setup_develop $NOVA_HPC_DIR
    if is_service_enabled n-cpu; then
        # An editable install places no file beside Nova's own drivers.
        nova-hpc install-shim
    fi
}

# Merge the include file of a part, where the node needs one.
#
#   nova_hpc_merge_part PART CONF_FILE
function nova_hpc_merge_part {
    local include=$NOVA_HPC_CONF_DIR/nova-hpc-$1.conf
    if [[ -e $include ]]; then
        nova_hpc_merge $include $2
    fi
}

function nova_hpc_configure {
    local -a more parts=(--part common)
    # Quotes in the setting group words, as they would on a command line.
    eval "more=($NOVA_HPC_CONFIGURE_ARGS)"
    sudo install -d -o $STACK_USER $NOVA_HPC_CONF_DIR
    # Devstack begins with a new nova.conf, so nothing of the last time counts.
    sudo rm -f $NOVA_HPC_CONF_DIR/nova-hpc-*.conf $NOVA_HPC_CONF_DIR/nova-hpc-undo.json \
        $NOVA_HPC_CONF_DIR/node.yaml
    cat >$NOVA_HPC_CONF_DIR/node.yaml <<EOF
schema: nova-hpc/node
version: 1
$NOVA_HPC_DECLARATION
EOF
    # A machine without devices gets the files of those services alone that it runs.
    if is_service_enabled n-api n-sch n-cond; then
        parts+=(--part controller)
    fi
    if is_service_enabled n-cpu; then
        parts+=(--part compute)
    fi
    if is_service_enabled placement-api; then
        parts+=(--part placement)
    fi
    # Filters, weighers and aliases of nova.conf are added to. nova_hpc_merge minds
    # the limits, and a machine without devices may be the controller of others.
    nova-hpc configure --write $NOVA_HPC_CONF_DIR --config-file $NOVA_CONF "${parts[@]}" \
        --declaration $NOVA_HPC_CONF_DIR/node.yaml \
        --enabled-filters "$(iniget $NOVA_CONF filter_scheduler enabled_filters),$NOVA_FILTERS" \
        --keep cpu_shared_set --keep cpu_dedicated_set \
        --replace max_placement_results --replace max_allocation_candidates \
        --replace device_spec "${more[@]}"
    nova_hpc_merge_part common $NOVA_CONF
    if is_service_enabled n-api n-sch n-cond; then
        nova_hpc_merge_part controller $NOVA_CONF
    fi
    if is_service_enabled n-cpu; then
        # nova-compute is not root and resets devices through oslo.privsep.
        sudo install -D -m 644 $NOVA_HPC_DIR/etc/rootwrap.d/nova-hpc.filters \
            $(dirname $NOVA_CONF)/rootwrap.d/nova-hpc.filters
        # nova-cpu.conf is made from this file when nova-compute starts.
        nova_hpc_merge_part compute $NOVA_CONF
    fi
    if is_service_enabled placement-api; then
        nova_hpc_merge_part placement $PLACEMENT_CONF
    fi
}

# Flavors for one, two, four and all GPUs of the nodes, and the smallest of them for tempest.
function nova_hpc_test_config {
    local -x OS_CLOUD=devstack-admin
    if [[ -z "$NOVA_HPC_TEST_FAMILY" ]]; then
        return
    fi
    if ! nova-hpc flavor create --family $NOVA_HPC_TEST_FAMILY --yes; then
        echo "No node reports devices: tempest keeps its flavors"
        return
    fi
    if is_service_enabled tempest; then
        iniset $TEMPEST_CONFIG compute flavor_ref \
            $(openstack flavor show $NOVA_HPC_TEST_FAMILY.gpu1 -f value -c id)
    fi
}

function nova_hpc_clean {
    if type -t nova-hpc > /dev/null; then
        nova-hpc install-shim --remove
    fi
    sudo rm -rf $NOVA_HPC_CONF_DIR $(dirname $NOVA_CONF)/rootwrap.d/nova-hpc.filters
}

if [[ "$1" == "stack" && "$2" == "install" ]]; then
    echo_summary "Installing nova-hpc"
    nova_hpc_install
elif [[ "$1" == "stack" && "$2" == "post-config" ]]; then
    echo_summary "Configuring nova-hpc"
    nova_hpc_configure
elif [[ "$1" == "stack" && "$2" == "test-config" ]]; then
    echo_summary "Making flavors of nova-hpc"
    nova_hpc_test_config
elif [[ "$1" == "clean" ]]; then
    nova_hpc_clean
fi

$_XTRACE_NOVA_HPC
