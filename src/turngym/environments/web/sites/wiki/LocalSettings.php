<?php
// The settings of the wiki, while its data is made and while it is served. WIKI_DATA holds the data.

$wikiData = getenv( 'WIKI_DATA' );

$wgSitename = 'Island wiki';
$wgServer = 'http://wiki.test';
$wgCanonicalServer = 'http://wiki.test';
$wgScriptPath = '';
$wgArticlePath = '/wiki/$1';
$wgResourceBasePath = '';

$wgDBtype = 'sqlite';
$wgDBname = 'site';
$wgSQLiteDataDir = $wikiData;
$wgCookiePrefix = 'wiki';
$wgSecretKey = 'the data of this wiki is made up';
$wgUpgradeKey = 'none';
$wgAuthenticationTokenVersion = null;

// Everything is in the one database, so that a reset of it resets the wiki.
$wgMainCacheType = CACHE_NONE;
$wgMessageCacheType = CACHE_NONE;
$wgParserCacheType = CACHE_NONE;
$wgSessionCacheType = CACHE_DB;
$wgObjectCaches[CACHE_DB] = [ 'class' => SqlBagOStuff::class, 'loggroup' => 'SQLBagOStuff' ];
$wgLocalisationCacheConf = [
	'class' => LocalisationCache::class,
	'store' => 'array',
	'storeDirectory' => "$wikiData/languages",
	'manualRecache' => PHP_SAPI !== 'cli',
];
$wgUseLocalMessageCache = false;
$wgCompressRevisions = false;
$wgJobRunRate = 0;
$wgMiserMode = false;

$wgEnableUploads = false;
$wgEnableEmail = false;
$wgPasswordAttemptThrottle = [];
$wgRateLimits = [];
$wgPasswordDefault = 'B';
$wgPasswordPolicy['policies']['default'] = [];
$wgPasswordPolicy['policies']['sysop'] = [];
$wgInvalidPasswordReset = false;
$wgPingback = false;
$wgPutIPinRC = false; // all users have one address, which no block of a user should reach
$wgGroupPermissions['*']['edit'] = false;
$wgGroupPermissions['*']['createaccount'] = false;
foreach ( [ 'default', 'creations', 'deletion', 'moves', 'rollback', 'uploads' ] as $name ) {
	$wgDefaultUserOptions["watch$name"] = 0;
}
$wgDefaultUserOptions['usenewrc'] = 0;
$wgShowExceptionDetails = true;
$wgUseInstantCommons = false;
$wgRightsPage = '';
$wgLogos = [];

wfLoadSkin( 'MonoBook' );
$wgDefaultSkin = 'monobook';

// The clock stands one minute after the newest change, so that what pages show is a function of
// what was done and not of when. While data is made, WIKI_NOW says when that was.
Wikimedia\Timestamp\ConvertibleTimestamp::setFakeTime( static function () use ( $wikiData ) {
	if ( isset( $GLOBALS['wikiNow'] ) ) {
		return $GLOBALS['wikiNow'];
	}
	$start = gmmktime( 9, 0, 0, 1, 5, 2026 );
	try {
		$database = new PDO( "sqlite:$wikiData/site.sqlite" );
		$newest = $database->query(
			'SELECT max(t) FROM (SELECT max(rev_timestamp) t FROM revision
			UNION SELECT max(log_timestamp) FROM logging)'
		)->fetchColumn();
	} catch ( PDOException $e ) {
		return $start; // while the tables are made
	}
	if ( !$newest ) {
		return $start;
	}
	$parts = sscanf( $newest, '%4d%2d%2d%2d%2d%2d' );
	return 60 + gmmktime( $parts[3], $parts[4], $parts[5], $parts[1], $parts[2], $parts[0] );
} );
