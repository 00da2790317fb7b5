<?php
// Sends the addresses of pages to the wiki, for the server that PHP brings.

if ( preg_match( '#^/(wiki/|$|\?)#', $_SERVER['REQUEST_URI'] ) ) {
	$_SERVER['SCRIPT_NAME'] = '/index.php';
	$_SERVER['SCRIPT_FILENAME'] = $_SERVER['DOCUMENT_ROOT'] . '/index.php';
	chdir( $_SERVER['DOCUMENT_ROOT'] );
	require $_SERVER['SCRIPT_FILENAME'];
	return true;
}
return false;
